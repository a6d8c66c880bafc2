-- enqueue_fenced: what `raise_fence` waits for until this transaction has ended. Locks: shared with all other producers.
SELECT pg_advisory_xact_lock_shared(hashtextextended('{schema} winch move', 0));

-- enqueue_fenced.look: the fence. A statement of its own, with a look as new as the lock.
SELECT body
FROM {schema}.book_line
WHERE book = 'parcel'
    AND key = 'fence';
