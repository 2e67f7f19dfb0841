"""Workers in other processes than the node's own, in any language, which claim jobs and end them by requests over HTTP.
`remote_workers` claims for them, and `remote_holds` renews and ends what they hold.
"""
