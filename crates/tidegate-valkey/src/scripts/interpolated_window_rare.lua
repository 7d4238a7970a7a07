-- Interpolated window: what few calls need.

-- The counts move into the interpolated_window of the new time and the one before.
function interpolated_window.rebase(_, s, to)
  s.last = to
end

function interpolated_window.standing(p, s, n)
  local previous, current, elapsed = at(p, s, n)
  local used = in_view(p, previous, current, elapsed)
  return min(used, u32_max), max(p.limit - used, 0), reset(p, previous, current, elapsed)
end

function interpolated_window.reprice(new, old, s, n, mode)
  local previous, current, elapsed = at(old, s, n)
  if mode == 3 then
    previous, current = 0, 0
  elseif mode ~= 0 then
    -- What is in view becomes one number in the current cell: it fades later than it would
    -- have, and never sooner.
    local used = in_view(old, previous, current, elapsed)
    previous, current = 0, change_used(mode, used, old.limit, new.limit)
  end
  s.last, s.previous, s.current = n, previous, min(current, u32_max)
end

function interpolated_window.force(p, s, n, cost)
  interpolated_window.advance(p, s, n)
  local used = in_view(p, at(p, s, n))
  local most = max(2 * p.limit - used, 0)
  s.current = min(s.current + min(cost, most), u32_max)
end

-- Only what the current cell counts can come back.
function interpolated_window.refund(p, s, n, cost, charged_at)
  local previous, current, elapsed = at(p, s, n)
  if charged_at and charged_at < n - elapsed then
    return 0
  end
  local back = min(cost, current)
  if back > 0 then
    s.last, s.previous, s.current = n, previous, current - back
  end
  return back
end
