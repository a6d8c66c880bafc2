-- move: a waiting job stands in another queue from now on; everything else stays.
UPDATE winch_job
SET queue = :queue,
    history = :history
WHERE id = :id
    AND state <> 'running';
