-- pages: the ids of jobs that are stored together, for verbs that list all jobs. One entry of a sorted set is a
-- page: the prefix of its ids (the time at which they were drawn, to 16 ms), then each whole id. An entry for each
-- job cost as much as the rest of its enqueue. Ids of removed jobs stay until prune rewrites the page.
local BEGIN, LENGTH, MOST_ON_PAGE = 12, 36, 1000

local function write_page(begin, ids)
  if #ids == 1 then
    call('ZADD', K.ids, '0', ids[1])
  elseif #ids > 1 then
    -- Made in one go: a long text costs time for each of its bytes whenever it is made.
    local first = ids[1]
    ids[1] = begin .. first
    local page = table.concat(ids)
    ids[1] = first
    call('ZADD', K.pages, '0', page)
  end
end

local function begin_alike(ids, begin)
  local sub = string.sub
  for i = 2, #ids do
    if sub(ids[i], 1, BEGIN) ~= begin then return false end
  end
  return true
end

-- `known_begin`: how all of them begin, where the caller has found that they begin alike.
local function put_on_pages(ids, known_begin)
  local begin, page, others = string.sub(ids[1], 1, BEGIN), {}, {}
  if #ids <= MOST_ON_PAGE and (known_begin == begin or begin_alike(ids, begin)) then return write_page(begin, ids) end
  for i = 1, #ids do
    local id = ids[i]
    if string.sub(id, 1, BEGIN) ~= begin or #page >= MOST_ON_PAGE then
      others[#others + 1] = id
    else
      page[#page + 1] = id
    end
  end
  write_page(begin, page)
  if #others > 0 then put_on_pages(others) end
end

local function ids_on(page)
  local ids = {}
  for at = BEGIN + 1, #page, LENGTH do ids[#ids + 1] = string.sub(page, at, at + LENGTH - 1) end
  return ids
end

-- The newest ids on pages, before this one; some more than the count, where they begin alike.
local function newest_on_pages(before, count)
  local found, alike, begin = {}, {}, nil
  local function take()
    table.sort(alike, function(a, b) return a > b end)
    for _, id in ipairs(alike) do
      if not before or id < before then found[#found + 1] = id end
    end
    alike = {}
  end
  local at = before and '[' .. string.sub(before, 1, BEGIN) .. '\255' or '+'
  while #found < count do
    local pages = call('ZREVRANGEBYLEX', K.pages, at, '-', 'LIMIT', 0, 8)
    if #pages == 0 then break end
    for _, page in ipairs(pages) do
      local its = string.sub(page, 1, BEGIN)
      if its ~= begin then take() end
      begin = its
      for _, id in ipairs(ids_on(page)) do alike[#alike + 1] = id end
    end
    at = '(' .. pages[#pages]
  end
  if #found < count then take() end
  return found
end

local function living(ids, step)
  local found = {}
  for i = 1, #ids, step do
    if call('HEXISTS', K.env, ids[i]) == 1 then found[#found + 1] = ids[i] end
  end
  return found
end

-- Look at some pages, the next ones each time, and write those anew of which not even half is left.
local function tidy_pages(visits)
  local last = call('GET', K.paged_to)
  local from = last and '(' .. last .. '\255' or '-'
  local pages = call('ZRANGEBYLEX', K.pages, from, '+', 'LIMIT', 0, visits)
  for _, page in ipairs(pages) do
    local ids = ids_on(page)
    local step = math.ceil(#ids / 16)
    if 2 * #living(ids, step) <= math.ceil(#ids / step) then
      local left = living(ids, 1)
      if 2 * #left <= #ids then
        call('ZREM', K.pages, page)
        write_page(string.sub(page, 1, BEGIN), left)
      end
    end
  end
  if #pages < visits then
    call('DEL', K.paged_to)
  else
    call('SET', K.paged_to, string.sub(pages[#pages], 1, BEGIN + LENGTH))
  end
end
