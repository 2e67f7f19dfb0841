"""A FastAPI application that gives slow work to Hocket and answers at once. The workers are processes of their own.

hocket init
hocket work examples/fastapi_app/reports.py &
uvicorn --app-dir examples/fastapi_app app:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from reports import make_report

import hocket


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with hocket.open() as node:
        app.state.node = node
        yield


def the_node(request: Request) -> hocket.Node:
    node: hocket.Node = request.app.state.node
    return node


Node = Annotated[hocket.Node, Depends(the_node)]
app = FastAPI(lifespan=lifespan)


@app.post("/reports", status_code=202)
async def submit(day: str, node: Node) -> dict[str, str]:
    handle = await node.submit(make_report.using(unique=day), day=day)
    return {"job": handle.job_id}


@app.get("/reports/{job}")
async def show(job: str, node: Node) -> dict[str, Any]:
    try:
        status = await node.job(job).status()
    except hocket.Usage as error:
        raise HTTPException(404, str(error)) from None
    return {name: status[name] for name in ("state", "outcome", "result", "error")}
