-- Logs: what few calls need.

-- What is charged in all.
function log.all(g)
  return (total(g, count(g)) - g.base) % sums
end

function log.shift_back(g, by)
  g.shift = g.shift + by
  if g.shift > 2251799813685248 then
    -- Beyond this the offset is worked into the records, so that it stays exact.
    thaw(g, 1)
    for i = 1, g.added do
      g.times[i] = g.times[i] - g.shift
    end
    g.shift = 0
  end
end

-- Takes up to `cost` back, newest charges first. Returns how much.
function log.take_newest(g, cost)
  local back = 0
  while back < cost and count(g) > 0 do
    local most = count(g)
    local own = (total(g, most) - total(g, most - 1)) % sums
    local part = min(own, cost - back)
    back = back + part
    thaw(g, most)
    if part == own then
      g.times[g.added], g.totals[g.added] = nil, nil
      g.added = g.added - 1
    else
      change_totals(g, g.added, -part)
    end
  end
  return back
end

-- Takes up to `cost` of the charges at `at` back. Returns how much.
function log.take_at(g, at, cost)
  at = at + g.shift
  local place = place_of(g, at)
  if place > count(g) or record(g, place) ~= at then
    return 0
  end
  local own = (total(g, place) - total(g, place - 1)) % sums
  local back = min(own, cost)
  if back > 0 then
    thaw(g, place)
    local i = place - (g.to - g.from)
    change_totals(g, i, -back)
    if back == own then
      table.remove(g.times, i)
      table.remove(g.totals, i)
      g.added = g.added - 1
    end
  end
  return back
end

-- Brings the sum to `units`: what goes, goes from the oldest; what comes, comes as new as `at`.
-- Either way nothing leaves sooner than it would have.
function log.scale(g, units, at)
  local sum = log.all(g)
  if sum > units then
    local base = (g.base + sum - units) % sums
    local gone = search(g, 0, function(_, up_to)
      return (up_to - g.base) % sums > sum - units
    end)
    drop(g, gone)
    g.base = base
  end
  log.add(g, at, max(units - sum, 0))
end

-- Calls `visit` with the true time and the cost of every charge, oldest first.
function log.each(g, visit)
  local before = g.base
  for i = 1, count(g) do
    local time, up_to = record(g, i)
    visit(time - g.shift, (up_to - before) % sums)
    before = up_to
  end
end
