-- A burst of up to `capacity`, then so many tokens at once every interval.
local interval_bucket = {}

function interval_bucket.numbers(header)
  local p = { initial = 0, since = 0 }
  p.count, p.period, p.capacity = unpack_from('>I4I7I4', header, 6)
  if byte(header) == 74 then
    -- 'J': keys first seen at `since` lack some tokens.
    p.initial, p.since = unpack_from('>I4I7', header, 21)
  end
  return p
end

-- How many intervals bring so many tokens back; nil if none ever does.
local function intervals(p, tokens)
  if tokens <= 0 then
    return 0
  elseif p.count > 0 then
    return divide_up(tokens, p.count)
  end
  return nil
end

-- Tokens in use at `n`, and the time since the latest grid point; nil before the first charge.
local function at(p, s, n)
  if not s.into then
    return s.used, nil
  end
  local passed, into = divide(n - s.last + s.into, p.period)
  local needed = intervals(p, s.used)
  if needed and (needed == 0 and p.count == 0 or passed > needed) then
    -- Full for a whole interval, or full with nothing to come: as good as fresh.
    return 0, nil
  end
  return max(s.used - passed * p.count, 0), into
end

function interval_bucket.fresh(p, n)
  if p.initial == 0 then
    return { last = n, used = 0 }
  end
  local start = { last = min(p.since, n), used = p.initial, into = 0 }
  local used, into = at(p, start, n)
  return { last = n, used = used, into = into }
end

function interval_bucket.advance(p, s, n)
  s.used, s.into = at(p, s, n)
  s.last = n
end

function interval_bucket.limit(p)
  return p.capacity
end

-- How long until the `nth` refill.
local function refill_in(p, into, nth)
  if not nth then
    return never
  elseif nth == 0 then
    return 0
  end
  local product = nth * p.period
  if product < two_53 then
    return max(product - into, 0)
  end
  local whole, rest = multiply_divide(nth, p.period, 281474976710656, 0)
  return longer(max(whole * 281474976710656 + (rest - into), 0), 0)
end

function interval_bucket.assess(p, s, n, cost)
  local used, into = at(p, s, n)
  into = into or 0
  local function returned_in(tokens)
    return refill_in(p, into, intervals(p, tokens))
  end
  if cost > p.capacity then
    return 3, max(p.capacity - used, 0), 0, never, returned_in(used)
  end
  local charged = used + cost
  local retry = returned_in(charged - p.capacity)
  if retry > 0 then
    return 1, max(p.capacity - used, 0), 0, retry, returned_in(used)
  end
  return 0, p.capacity - charged, 0, 0, returned_in(charged)
end

function interval_bucket.commit(p, s, n, cost)
  interval_bucket.advance(p, s, n)
  s.used, s.into = s.used + cost, s.into or 0
end

function interval_bucket.fresh_after(p, s, n)
  local used, into = at(p, s, n)
  local fresh = interval_bucket.fresh(p, n)
  if p.initial == 0 and used == fresh.used and into == fresh.into then
    return 0
  end
  local function full_for_one(tokens, since)
    local needed = intervals(p, tokens)
    return refill_in(p, since or 0, needed and needed + 1)
  end
  return max(full_for_one(used, into), full_for_one(fresh.used, fresh.into))
end

-- The time into the grid is written one longer, so that 0 stands for no grid.
function interval_bucket.encode(_, s)
  return pack('>I4I7', s.used, s.into and s.into + 1 or 0)
end

function interval_bucket.decode(_, raw, from, last)
  local used, into = unpack_from('>I4I7', raw, from)
  return { last = last, used = used, into = into > 0 and into - 1 or nil }
end

algorithms[73], algorithms[74] = interval_bucket, interval_bucket
header_sizes.I, header_sizes.J = 20, 31
