"""A web application with a worker inside: Starlette opens the node and starts the worker when it starts, and stops both
when it ends. One Ctrl-C, and the running jobs are finished or handed back.

    hocket init
    uvicorn --app-dir examples web:app

    curl -X POST 'localhost:8000/thumbnails?src=cat.png'
    curl localhost:8000/thumbnails/JOB
    curl localhost:8000/status
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import hocket


@hocket.job("example.thumbnail", retries=3)
async def thumbnail(ctx: hocket.Context, src: str, seconds: float = 0.1) -> str:
    await asyncio.sleep(seconds)
    return f"small-{src}"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, hocket.Node]]:
    # The signals are uvicorn's: `working` leaves them alone, and stops with the block.
    async with hocket.open() as node, node.working([thumbnail], grace=5):
        yield {"node": node}


async def submit(request: Request) -> JSONResponse:
    try:
        seconds = float(request.query_params.get("seconds", "0.1"))
        handle = await request.state.node.submit(thumbnail, src=request.query_params["src"], seconds=seconds)
    except (hocket.Usage, ValueError, KeyError) as error:
        return JSONResponse({"error": str(error)}, 400)
    return JSONResponse({"job_id": handle.job_id}, 202)


async def show(request: Request) -> JSONResponse:
    try:
        job = await request.state.node.job(request.path_params["job_id"]).status()
    except hocket.Usage as error:
        return JSONResponse({"error": str(error)}, 404)
    return JSONResponse({name: job[name] for name in ("state", "outcome", "result", "error")})


async def status(request: Request) -> JSONResponse:
    return JSONResponse((await hocket.admin(request.state.node).status()).jobs)


app = Starlette(
    routes=[
        Route("/thumbnails", submit, methods=["POST"]),
        Route("/thumbnails/{job_id}", show),
        Route("/status", status),
    ],
    lifespan=lifespan,
)
