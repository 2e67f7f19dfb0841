"""The same jobs as git objects: a job, its claims and its result are commits under refs/gatos/jobs, in any git
repository that can be reached. Whoever moves a ref first holds the job, and git decides who was first.
"""
