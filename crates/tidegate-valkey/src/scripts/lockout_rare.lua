-- Lockout: what few calls need.
log.rare()

function lockout.rebase(_, s, to)
  local by = s.last - to
  log.shift_back(s.failures, by)
  log.shift_back(s.long, by)
  s.banned_until, s.failed_at = max(s.banned_until - by, 0), max(s.failed_at - by, 0)
  s.last = to
end

function lockout.standing(p, s, n)
  return min(failures(p, s, n), u32_max), remaining(p, s, n), reset(p, s, n)
end

-- Failures follow the mode; a ban that has begun stays, except after a reset.
function lockout.reprice(new, old, s, n, mode)
  lockout.advance(old, s, n)
  if mode == 3 then
    for field, value in pairs(lockout.fresh(new, n)) do
      s[field] = value
    end
    return
  end
  local used = change_used(mode, log.all(s.failures), old.failures, new.failures)
  log.scale(s.failures, used, n)
  if not new.cap then
    s.long = log.new()
  end
end

-- Clears the failures and the ban; of the long cap only the attempt's own charge.
function lockout.success(p, s, n)
  if lockout.fresh_after(p, s, n) == 0 then
    return false
  end
  lockout.advance(p, s, n)
  log.take_newest(s.long, 1)
  s.failures = log.new()
  s.bans, s.banned_until, s.failed_at = 0, 0, 0
  return true
end
