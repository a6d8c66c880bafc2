"""What the shop keeps: orders, receipts, and jobs, in one PostgreSQL database or one SQLite file.

`python -m examples.litestar_shop.store` creates the tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import winch
from winch.integrations.sqlalchemy import JobSession, RequireSession, begin

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
jobs = winch.App(URL)
# An enqueue without a session could commit without its order. This refuses it.
jobs.use(RequireSession())
engine = (
    None
    if URL.startswith("sqlite:")
    else create_engine(URL.replace("postgresql://", "postgresql+psycopg://", 1))
)


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """What a customer has ordered. `job` is the id of the job that writes its receipt."""

    __tablename__ = "shop_order"
    number: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    job: Mapped[str] = mapped_column(default="")


class Receipt(Base):
    """The receipt of an order: one, however often its job runs."""

    __tablename__ = "shop_receipt"
    number: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]


@contextmanager
def transaction() -> Iterator[JobSession]:
    """A session whose rows and jobs are committed together at the end of the block."""
    if engine is None:
        with begin(jobs) as session:  # SQLite: on the connection of Winch
            yield session
    else:
        with JobSession(engine) as session, session.begin():
            yield session


def create_tables() -> None:
    """Create what is missing: Winch's schema and the tables of the shop."""
    jobs.migrate()
    with transaction() as session:
        Base.metadata.create_all(session.connection())


if __name__ == "__main__":
    create_tables()
