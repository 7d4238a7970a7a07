-- Fixed window: what few calls need.

-- The count moves into the fixed_window of the new time, wherever that ends.
function fixed_window.rebase(_, s, to)
  s.last, s.ending = to, never
end

function fixed_window.advance(p, s, n)
  set(p, s, n, used_at(p, s, n))
end

function fixed_window.standing(p, s, n)
  local used = used_at(p, s, n)
  local _, ending = bounds(p, s, n)
  return used, max(p.limit - used, 0), reset(used, ending - n)
end

function fixed_window.reprice(new, old, s, n, mode)
  fixed_window.advance(old, s, n)
  local used = change_used(mode, s.used, old.limit, new.limit)
  if new.align == 75 then
    set(new, s, n, used)
  end
  s.used = used
end

function fixed_window.force(p, s, n, cost)
  local used = used_at(p, s, n)
  set(p, s, n, max(used, min(used + cost, 2 * p.limit)))
end

function fixed_window.refund(p, s, n, cost, charged_at)
  if charged_at and charged_at < bounds(p, s, n) then
    return 0
  end
  local used = used_at(p, s, n)
  local back = min(cost, used)
  if back > 0 then
    set(p, s, n, used - back)
  end
  return back
end
