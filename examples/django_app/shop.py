"""A Django application in one file. A request stores an order and submits a job after the commit; a worker settles it.

hocket init
python examples/django_app/shop.py migrate_shop
hocket work examples/django_app/shop.py &
python examples/django_app/shop.py runserver
"""

import os
import sys
from functools import cache

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["localhost", "testserver"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.db")}
        },
    )
    django.setup()

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

import hocket


@hocket.job("shop.settle", retries=5)
def settle(order: int) -> str:
    with connection.cursor() as cursor:  # setting a value may be repeated; adding to one may not
        cursor.execute("UPDATE orders SET state = 'settled' WHERE id = %s", [order])
    connection.close()  # a worker has no request whose end closes it
    return "settled"


@cache
def node() -> hocket.SyncNode:
    """The node of this process, opened at the first request: after a server like gunicorn has forked."""
    return hocket.open_sync()


def create_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)")


def order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (state) VALUES ('new') RETURNING id")
            (number,) = cursor.fetchone()
        transaction.on_commit(lambda: node().submit(settle.using(unique=f"order-{number}"), order=number))
    return JsonResponse({"order": number}, status=202)


def show(request: HttpRequest, number: int) -> JsonResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM orders WHERE id = %s", [number])
        row = cursor.fetchone()
    return JsonResponse({"state": row[0]} if row else {"error": "no such order"}, status=200 if row else 404)


urlpatterns = [path("orders", order), path("orders/<int:number>", show)]

if __name__ == "__main__":
    if sys.argv[1:] == ["migrate_shop"]:
        create_table()
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
