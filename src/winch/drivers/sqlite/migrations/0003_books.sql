-- What Winch notes beside the jobs: access tokens, the audit, rates by the minute and hour.
CREATE TABLE winch_book_line (
    book TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    drop_at INTEGER,
    PRIMARY KEY (book, key)
) STRICT, WITHOUT ROWID;

-- Serves write_lines, which removes some of what is over.
CREATE INDEX winch_book_line_drop ON winch_book_line (drop_at) WHERE drop_at IS NOT NULL;
