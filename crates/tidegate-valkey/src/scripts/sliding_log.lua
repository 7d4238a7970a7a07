-- Never more than N in any window of length P: every charge is remembered until it is P old.
do
  local window = { paged = true }

  function window.numbers(header)
    local limit, period = unpack_from('>I4I7', header, 6)
    return { limit = limit, period = period }
  end

  function window.fresh(_, n)
    return { last = n, log = log.new() }
  end

  function window.rebase(_, s, to)
    log.shift_back(s.log, s.last - to)
    s.last = to
  end

  function window.advance(p, s, n)
    log.trim(s.log, n - p.period)
    s.last = n
  end

  function window.limit(p)
    return p.limit
  end

  local function reset(p, s, n)
    local newest = log.newest(s.log, n - p.period)
    return newest and max(newest + p.period - n, 0) or 0
  end

  function window.assess(p, s, n, cost)
    local used = log.sum(s.log, n - p.period)
    local remaining = max(p.limit - used, 0)
    if cost > p.limit then
      return 3, remaining, 0, never, reset(p, s, n)
    end
    local above = used + cost - p.limit
    if above > 0 then
      local freed = log.leaves(s.log, n - p.period, above)
      local retry = freed and max(freed + p.period - n, 0) or never
      return 1, remaining, 0, retry, reset(p, s, n)
    end
    return 0, remaining - cost, 0, 0, cost == 0 and reset(p, s, n) or p.period
  end

  function window.commit(p, s, n, cost)
    window.advance(p, s, n)
    log.add(s.log, n, cost)
  end

  function window.standing(p, s, n)
    local used = log.sum(s.log, n - p.period)
    return min(used, u32_max), max(p.limit - used, 0), reset(p, s, n)
  end

  window.fresh_after = reset

  function window.reprice(new, old, s, n, mode)
    window.advance(old, s, n)
    log.scale(s.log, change_used(mode, log.all(s.log), old.limit, new.limit), n)
  end

  function window.force(p, s, n, cost)
    window.advance(p, s, n)
    log.add(s.log, n, min(cost, max(2 * p.limit - log.all(s.log), 0)))
  end

  function window.refund(p, s, n, cost, charged_at)
    local cutoff, back = n - p.period, 0
    if not charged_at then
      back = log.take_newest(s.log, min(log.sum(s.log, cutoff), cost))
    elseif charged_at > cutoff then
      back = log.take_at(s.log, charged_at, cost)
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

  algorithms[76] = window
  header_sizes.L = 16
end
