-- Jobs that are waited for together are told about once, not one by one: the key says what their ids begin with, and
-- whether one of them is live is looked at in the index of live jobs. A key that stands last in the list already is
-- not written again: whoever takes the list up has the file to itself, and looks after all that was written with it.

DROP TRIGGER winch_job_awaited;

CREATE TRIGGER winch_job_awaited AFTER DELETE ON winch_job
WHEN OLD.headers <> '{}' AND instr(OLD.headers, '"winch-awaited"') > 0
    AND (instr(OLD.headers, '"winch-awaited":"all:') = 0 OR instr(OLD.headers, '+job"') > 0)
BEGIN
    INSERT INTO winch_recheck (key) VALUES ('job:' || OLD.id);
END;

CREATE TRIGGER winch_job_awaited_together AFTER DELETE ON winch_job
WHEN OLD.headers <> '{}' AND instr(OLD.headers, '"winch-awaited":"all:') > 0
BEGIN
    INSERT INTO winch_recheck (key)
    SELECT said.key
    FROM (SELECT substr(OLD.headers, instr(OLD.headers, '"winch-awaited":"all:') + 17, 34) AS key) AS said
    WHERE said.key IS NOT (SELECT key FROM winch_recheck ORDER BY seq DESC LIMIT 1);
END;
