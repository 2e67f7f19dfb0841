"""How nodes of one user find each other and exchange ops: who is admitted (`enrolment`), what the server answers
(`gate`), what the client asks (`sync`), and when (`loop`). The protocol is Likewise's `/ops`. Hocket's additions have
headers and paths of their own; with a peer that knows none of them, this node keeps strictly to the Likewise protocol.
Only `http` and `lan` open sockets: everything else also runs over a simulated network on virtual time.
"""
