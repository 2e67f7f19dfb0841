"""Work: requests on jobs (`jobs`), how jobs are shown (`view`), the functions that run them (`handlers`, `runner`), the
loop that claims and completes them (`worker`), schedules (`cron`), and which workers are alive (`liveness`).
"""
