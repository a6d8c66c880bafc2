"""The shop's tables, and one way to run a statement on whatever connection a transaction has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from winch import App

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
# Entries of one product are numbered by whoever writes the next: right only because they come in turn.
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

PRODUCTS = ("rope", "pulley", "hook")
IN_STOCK = 1_000_000


class Books:
    """The shop's side of the database that its jobs live in."""

    def __init__(self, app: App) -> None:
        self._app = app
        url = app.settings.url
        self.is_postgres = url.startswith("postgres")
        make: Any = postgresql.psycopg.dialect if self.is_postgres else sqlite.dialect
        self._dialect = make() if self.is_postgres else make(paramstyle="named")
        self._engine = (
            sa.create_engine("postgresql+psycopg://" + url.split("://")[1]) if self.is_postgres else None
        )

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
