-- Strict window: what few calls need.
log.rare()

-- Cells move by whole cells, rounded towards later: none leaves sooner than it should.
function strict_window.rebase(p, s, to)
  log.shift_back(s.log, index(p, s.last - to))
  s.last = to
end

function strict_window.standing(p, s, n)
  local used = log.sum(s.log, cutoff(p, n))
  return min(used, u32_max), max(p.limit - used, 0), reset(p, s, n)
end

-- Where the cells change their length, each count goes into the new cell that holds the latest
-- moment it may come from.
function strict_window.reprice(new, old, s, n, mode)
  strict_window.advance(old, s, n)
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

function strict_window.force(p, s, n, cost)
  strict_window.advance(p, s, n)
  log.add(s.log, index(p, n), min(cost, max(2 * p.limit - log.all(s.log), 0)))
end

function strict_window.refund(p, s, n, cost, charged_at)
  local oldest, back = cutoff(p, n), 0
  if not charged_at then
    back = log.take_newest(s.log, min(log.sum(s.log, oldest), cost))
  elseif index(p, charged_at) > oldest then
    back = log.take_at(s.log, index(p, charged_at), cost)
  end
  if back > 0 then
    strict_window.advance(p, s, n)
  end
  return back
end
