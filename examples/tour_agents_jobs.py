"""The handlers of the tour's third part."""

import os

import hocket


@hocket.job("tour.page", claim="rendezvous")
def page(ctx, number):
    return {"pid": os.getpid(), "page": number}


@hocket.job("tour.ending", score={"score": {"phases": {"work": 4}, "wait_budget": {"help": 2}}})
async def ending(ctx):
    """Asks an agent that never answers, for two beats at most."""
    help = ctx.ask_help("cleo", "how does the story end?")
    return await ctx.wait_for(help, budget="help", fallback="and they synced happily ever after")
