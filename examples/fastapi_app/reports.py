"""The handlers: a module that neither imports the application nor FastAPI, so that workers stay small."""

import hocket


@hocket.job("web.report", retries=3, timeout="5m")
def make_report(ctx: hocket.Context, day: str) -> str:
    return f"report of {day}"
