-- What few calls ask, as the body of a function of `e`, `op` and its operands `x`, `y` and `z`.
e.a.rare()

local code = e.is_rebased and 8 or 0
local done = pack('>B', code)

local function refund(cost, charged_at)
  local back = e.a.refund(e.p, e.s, e.n, cost, charged_at)
  e.is_changed = back > 0
  return pack('>BI4', code, back)
end

local function force(cost)
  if cost > 0 then
    e.a.force(e.p, e.s, e.n, cost)
    e.is_changed = true
    if e.blocked <= e.n then
      e.blocked = 0
    end
  end
  local _, remaining, reset = e.a.standing(e.p, e.s, e.n)
  if e.blocked > e.n then
    remaining, reset = 0, max(reset, e.blocked - e.n)
  end
  return decision(e, cost, 0, remaining, 0, 0, reset)
end

local function state()
  local used, remaining, reset = e.a.standing(e.p, e.s, e.n)
  local left = max(e.blocked - e.n, 0)
  if left > 0 then
    remaining, reset, left = 0, max(reset, left), left + e.lag
  end
  reset = reset > 0 and longer(reset, e.lag) or 0
  if reset == never then
    reset = -1
  end
  local limit, last = e.a.limit(e.p), e.s.last
  local leases = e.a.leases and e.a.leases(e.s, e.n) or ''
  return pack('>BI4I4I4i7I7I7', code, limit, used, remaining, reset, left, last) .. leases
end

local function reset()
  if e.a.start_over then
    e.is_changed = e.a.start_over(e.p, e.s)
  else
    e.s = e.a.fresh(e.p, e.n)
  end
  e.blocked = 0
  e.is_forgotten = not e.is_changed
  return done
end

local function reserve(cost, high, low)
  local assess = e.a.assess_reservation or e.a.assess
  local answer, verdict = decide(e, cost, assess, cost, high, low)
  if verdict == 0 then
    charge(e, 't', cost)
  end
  return answer
end

local function block(period)
  if period > 0 then
    -- The state must have seen this moment, for a step of the clock to be noticed later.
    e.a.advance(e.p, e.s, e.n)
    e.blocked, e.is_changed = e.n + period, true
  end
  return done
end

local function settle(reserved, charged_at, actual)
  if actual < reserved then
    return refund(reserved - actual, charged_at)
  end
  force(actual - reserved)
  return pack('>BI4', code, 0)
end

if op == 'n' then
  local lease = e.a.renew(e.p, e.s, e.n, x)
  e.is_changed = lease ~= nil
  return done .. (lease or '')
elseif op == 'l' then
  e.is_changed = e.a.release(e.p, e.s, e.n, x)
  return pack('>BB', code, e.is_changed and 1 or 0)
elseif op == 'y' then
  e.is_changed = e.a.success(e.p, e.s, e.n)
  return done
elseif op == 'u' then
  -- With nothing left this asks for 1, whose denial says when something will be.
  local _, remaining = e.a.standing(e.p, e.s, e.n)
  return take(e, 't', min(tonumber(x), max(remaining, 1)))
elseif op == 'r' then
  return reserve(tonumber(x), tonumber(y), tonumber(z))
elseif op == 's' then
  return settle(tonumber(x), tonumber(y), tonumber(z))
elseif op == 'g' then
  return refund(tonumber(x))
elseif op == 'f' then
  return force(tonumber(x))
elseif op == 'z' then
  return reset()
elseif op == 'b' then
  return block(tonumber(x))
elseif op == 'c' then
  e.is_changed = e.blocked > 0
  e.blocked = 0
  return done
end
return state()
