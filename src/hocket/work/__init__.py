"""Work: the functions that run jobs (`handlers`), one run of one (`runner`) and what it knows (`context`), the loop
that claims and completes jobs (`worker`), who goes first (`claim_order`, `members`), and what every process of a node
does for all (`maintenance`). `families.jobs` has the requests on jobs.
"""
