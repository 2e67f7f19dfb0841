"""The handlers of the tour's third part."""

import os

import hocket


@hocket.job("tour.page", claim="rendezvous")
def page(ctx, number):
    return {"pid": os.getpid(), "page": number}
