-- going_home: families of gates at home, and on their way there; see parts/homes.lua.
-- A:      –
-- Return: {those on their way, those that are here}
-- Keys:   shut, common
-- flags:  no-writes
-- parts:
return {call('SMEMBERS', K.shut), call('SMEMBERS', K.common)}
