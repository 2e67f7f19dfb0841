"""How nodes of one user find each other and exchange ops: who is let in (`enrolment`), what the server side answers
(`gate`), what the client side asks (`sync`), and when (`loop`). The protocol is Likewise's `/ops`; what Hocket adds to
it has headers and paths of its own, and a peer that knows none of them is dealt with to the letter. Nothing here opens
a socket but `http` and `lan`: everything else runs as well over a simulated network on virtual time.
"""
