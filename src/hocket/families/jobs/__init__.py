"""Jobs: what the ops about one mean (`rules`), what a node can do with them (`requests`, `claiming`, `rescue`, `cron`),
how people see them (`view`, `why`), and which worker should try to claim one (`candidates`, `rendezvous`).
"""
