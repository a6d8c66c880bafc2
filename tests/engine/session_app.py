"""An importable app on PostgreSQL for jobs in processes of their own; $WINCH_URL names the store."""

from __future__ import annotations

import os

import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from winch import App, Context

app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms", grace="1s")


@app.task(isolate="process")
def insert(n: int, *, ctx: Context) -> None:
    url = os.environ["WINCH_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with Session(engine) as session, ctx.transaction(session) as tx:
        tx.execute(sqlalchemy.text(f"INSERT INTO effect VALUES ({n})"))
        tx.result = os.getpid()
