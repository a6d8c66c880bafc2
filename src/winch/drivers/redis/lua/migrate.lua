-- migrate: the layout's version is written where there is none, and whether events are kept.
-- A:      version, events
-- Return: {version before or '', version now, events}
-- Keys:   meta, recorded
-- flags:
-- parts:
local before = call('HGET', K.meta, 'version') or ''
call('HSETNX', K.meta, 'version', A.version)
if A.events then call('HSET', K.meta, 'events', '1') end
if call('HGET', K.meta, 'events') == '1' then call('SET', K.recorded, '1') end
return {before, call('HGET', K.meta, 'version'), call('HGET', K.meta, 'events') or '0'}
