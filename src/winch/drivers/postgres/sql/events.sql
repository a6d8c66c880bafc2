-- events: the changes after this one, in the order of their numbers.
SELECT
    seq, job::text, v, kind, state, token::text, by_token::text, session::text, attempt, at
FROM {schema}.job_event
WHERE seq > :after
ORDER BY seq
LIMIT :limit;

-- events.hint: gives the triggers the verb that follows and its moment, until the transaction ends. Sent before
-- the writing verbs of a driver with events="full", and by no other.
SELECT
    set_config('winch.verb', :verb, true),
    set_config('winch.at', coalesce(:at, ''), true);
