"""The shop's tables, and one way to run a statement on whatever connection a transaction has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from winch import App, Context

metadata = sa.MetaData()
orders = sa.Table(
    "shop_order",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("product", sa.Text, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("amount", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
# No unique key on the order in the three below: a second receipt must show in the books, not fail.
receipts = sa.Table("shop_receipt", metadata, sa.Column("order_id", sa.Text, nullable=False))
moves = sa.Table(
    "shop_move",
    metadata,
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("product", sa.Text, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
)
thumbnails = sa.Table(
    "shop_thumbnail",
    metadata,
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
)
# The next writer numbers the entries of a product: right only because they come in turn.
ledger = sa.Table(
    "shop_ledger",
    metadata,
    sa.Column("product", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("order_id", sa.Text, nullable=False),
)
stock = sa.Table(
    "shop_stock",
    metadata,
    sa.Column("product", sa.Text, primary_key=True),
    sa.Column("on_hand", sa.Integer, nullable=False),
)
imported = sa.Table(
    "shop_imported",
    metadata,
    sa.Column("import_id", sa.Text, primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
)
# What customers find when they search; follows the stock by a debounced job.
catalogue = sa.Table(
    "shop_catalogue",
    metadata,
    sa.Column("product", sa.Text, primary_key=True),
    sa.Column("on_hand", sa.Integer, nullable=False),
)
# No unique key here either: a window that is reported twice must show.
reports = sa.Table(
    "shop_report",
    metadata,
    sa.Column("window_at", sa.Text, nullable=False),
    sa.Column("orders_paid", sa.Integer, nullable=False),
)

# Checkouts that a person approves: what is held for one and what is given back, and the boxes it became.
checkouts = sa.Table(
    "shop_checkout",
    metadata,
    sa.Column("order_id", sa.Text, primary_key=True),
    sa.Column("product", sa.Text, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
holds = sa.Table(
    "shop_hold",
    metadata,
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("quantity", sa.Integer, nullable=False),
)
boxes = sa.Table(
    "shop_box",
    metadata,
    sa.Column("order_id", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
)

PRODUCTS = ("rope", "pulley", "hook")
IN_STOCK = 1_000_000


@dataclass(frozen=True)
class Effects:
    """Where a job writes. `tx` is the job's own transaction, where the store has one; `is_new` is
    false if an earlier attempt has written already."""

    run: Callable[[Any], list[tuple[Any, ...]]]
    tx: Any
    is_new: bool


class Books:
    """The shop's side of the database that its jobs live in; a SQLite file where they live in Redis."""

    def __init__(self, app: App) -> None:
        self._app = app
        url = app.settings.url
        self.is_postgres = url.startswith("postgres")
        self.is_apart = url.startswith("redis")
        make: Any = postgresql.psycopg.dialect if self.is_postgres else sqlite.dialect
        self._dialect = make() if self.is_postgres else make(paramstyle="named")
        self._engine: sa.Engine | None = None
        if self.is_postgres:
            self._engine = sa.create_engine("postgresql+psycopg://" + url.split("://")[1])
        elif self.is_apart:
            self._engine = _one_writer(os.environ["SHOP_BOOKS"])

    def run(self, conn: Any, statement: Any) -> list[tuple[Any, ...]]:
        """Run a SQLAlchemy statement on the connection of app.transaction or ctx.transaction."""
        compiled = statement.compile(dialect=self._dialect, compile_kwargs={"render_postcompile": True})
        cursor = conn.execute(str(compiled), compiled.params or {})
        return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A business transaction outside a job; what is yielded may be passed on as conn=."""
        if self._engine is None:
            with self._app.transaction() as conn:
                yield conn
        else:
            with Session(self._engine) as session, session.begin():
                yield session

    @contextmanager
    def effects(
        self, ctx: Context, written: sa.Table, key: str, column: str = "order_id"
    ) -> Iterator[Effects]:
        """A job's writes about one order, once. One commit with the end of the job where the store can;
        else the row of this order in `written` shows a later attempt that they are done."""
        if not self.is_apart:
            with ctx.transaction() as tx:
                yield Effects(lambda statement: self.run(tx.connection, statement), tx, is_new=True)
            return
        with self.transaction() as session:
            known = self.execute(session, sa.select(written.c[column]).where(written.c[column] == key))
            yield Effects(lambda statement: self.execute(session, statement), None, is_new=not known)

    def execute(self, tx: Any, statement: Any) -> list[tuple[Any, ...]]:
        """Run a statement in `transaction`."""
        if isinstance(tx, Session):
            result: Any = tx.execute(statement)
            return [tuple(row) for row in result] if result.returns_rows else []
        return self.run(tx, statement)

    def create(self) -> None:
        """Make the tables, with goods in stock."""
        with self.transaction() as tx:
            for table in metadata.sorted_tables:
                self.execute(tx, sa.schema.CreateTable(table, if_not_exists=True))
            for product in PRODUCTS:
                self.execute(tx, sa.insert(stock).values(product=product, on_hand=IN_STOCK))


def _one_writer(path: str) -> sa.Engine:
    """An engine whose transactions take the write lock first: what is read stays so until the commit."""
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30, "isolation_level": None})

    @sa.event.listens_for(engine, "begin")
    def begin(conn: sa.Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
