"""Jobs as git objects: a job, its claims and its result are commits under refs/gatos/jobs, in any reachable git
repository. The worker that moves a ref first holds the job, and git decides which one was first.
"""
