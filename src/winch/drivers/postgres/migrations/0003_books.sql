-- What Winch notes beside the jobs: access tokens, the audit, rates by the minute and hour. Keys are compared
-- as bytes, so that their order is the same in every store and whatever the database's locale.
CREATE TABLE {schema}.book_line (
    book text NOT NULL,
    key text COLLATE "C" NOT NULL,
    body text NOT NULL,
    drop_at timestamptz,
    PRIMARY KEY (book, key)
);

CREATE INDEX book_line_drop ON {schema}.book_line (drop_at) WHERE drop_at IS NOT NULL;
COMMENT ON INDEX {schema}.book_line_drop IS 'serves write_lines, which removes some of what is over';
