"""Search reindex, debounced per document: a burst of edits is one job, with what was written last.

It waits until a document has been left alone for two seconds, and never longer than thirty. An edit that
comes while its document is being indexed is indexed once more.
"""

from __future__ import annotations

from winch import App, Unique

app = App()
documents: dict[int, str] = {}
index: dict[int, str] = {}
runs: list[int] = []


@app.task(
    name="search.reindex",
    queue="search",
    unique=Unique("document", mode="debounce", wait="2s", max_wait="30s"),
)
def reindex(document: int) -> None:
    runs.append(document)
    index[document] = documents[document].lower()


def edit(document: int, text: str) -> None:
    documents[document] = text
    reindex.enqueue(document)
