"""Work: what can be done with jobs (`jobs`), how they are shown (`view`), the functions that do them
(`handlers`, `runner`), the loop that claims and finishes them (`worker`), the schedules that make them
(`cron`), and which workers are alive (`liveness`).
"""
