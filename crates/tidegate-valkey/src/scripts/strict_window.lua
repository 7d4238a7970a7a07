-- Never more than N in any window of length P: charges are counted in cells, and a cell leaves the
-- sum only when all of it is P old. The times in the log are numbers of cells.
do
  local window = { paged = true }

  function window.numbers(header)
    local limit, period, cells = unpack_from('>I4I7I2', header, 6)
    local cell = divide_up(period, cells)
    return { limit = limit, cell = cell, span = divide_up(period, cell) + 1 }
  end

  function window.fresh(_, n)
    return { last = n, log = log.new() }
  end

  local function index(p, n)
    return (divide(n, p.cell))
  end

  -- The newest cell that is no longer summed.
  local function cutoff(p, n)
    return index(p, n) - p.span
  end

  -- Cells move by whole cells, rounded towards later: none leaves sooner than it should.
  function window.rebase(p, s, to)
    log.shift_back(s.log, index(p, s.last - to))
    s.last = to
  end

  function window.advance(p, s, n)
    log.trim(s.log, cutoff(p, n))
    s.last = n
  end

  function window.limit(p)
    return p.limit
  end

  local function leaves_in(p, cell, n)
    return max((cell + p.span) * p.cell - n, 0)
  end

  local function reset(p, s, n)
    local newest = log.newest(s.log, cutoff(p, n))
    return newest and leaves_in(p, newest, n) or 0
  end

  function window.assess(p, s, n, cost)
    local used = log.sum(s.log, cutoff(p, n))
    local remaining = max(p.limit - used, 0)
    if cost > p.limit then
      return 3, remaining, 0, never, reset(p, s, n)
    end
    local above = used + cost - p.limit
    if above > 0 then
      local freed = log.leaves(s.log, cutoff(p, n), above)
      return 1, remaining, 0, freed and leaves_in(p, freed, n) or never, reset(p, s, n)
    end
    local own = cost == 0 and 0 or leaves_in(p, index(p, n), n)
    return 0, remaining - cost, 0, 0, max(reset(p, s, n), own)
  end

  function window.commit(p, s, n, cost)
    window.advance(p, s, n)
    log.add(s.log, index(p, n), cost)
  end

  function window.standing(p, s, n)
    local used = log.sum(s.log, cutoff(p, n))
    return min(used, u32_max), max(p.limit - used, 0), reset(p, s, n)
  end

  window.fresh_after = reset

  -- Where the cells change their length, each count goes into the new cell that holds the latest
  -- moment it may come from.
  function window.reprice(new, old, s, n, mode)
    window.advance(old, s, n)
    if old.cell ~= new.cell then
      local moved = log.new()
      log.each(s.log, function(cell, cost)
        local latest = min((cell + 1) * old.cell - 1, n)
        local rest = fmod(latest, new.cell)
        if rest < 0 then
          rest = rest + new.cell
        end
        log.add(moved, (latest - rest) / new.cell, cost)
      end)
      s.log = moved
    end
    local used = change_used(mode, log.all(s.log), old.limit, new.limit)
    log.scale(s.log, used, index(new, n))
  end

  function window.force(p, s, n, cost)
    window.advance(p, s, n)
    log.add(s.log, index(p, n), min(cost, max(2 * p.limit - log.all(s.log), 0)))
  end

  function window.refund(p, s, n, cost, charged_at)
    local oldest, back = cutoff(p, n), 0
    if not charged_at then
      back = log.take_newest(s.log, min(log.sum(s.log, oldest), cost))
    elseif index(p, charged_at) > oldest then
      back = log.take_at(s.log, index(p, charged_at), cost)
    end
    if back > 0 then
      window.advance(p, s, n)
    end
    return back
  end

  function window.save(key, prefix, s, micros)
    log.save(key, prefix, s.log, micros)
  end

  function window.decode(_, raw, at, last, key)
    return { last = last, log = log.decode(raw, at, key) }
  end

  algorithms[83] = window
  header_sizes.S = 18
end
