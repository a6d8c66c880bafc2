"""A small application to try the image and the compose file with; put your own in its place."""

import winch

app = winch.App()


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.schedule(every="1m")
@app.task
def tidy() -> None: ...
