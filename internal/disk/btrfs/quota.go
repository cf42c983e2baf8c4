package btrfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// setQuota brings the file system's accounting to what is wanted and tells what it is now.
func (p *Pool) setQuota(want Quota) (Quota, error) {
	fd := int(p.disks.Fd())
	have, inconsistent, err := quotaState(fd)
	if err != nil {
		return "", fmt.Errorf("look at quotas: %w", err)
	}
	if want == QuotaOff {
		return QuotaOff, nil // what is on may stay on: disks without a limit have none
	}
	if have != QuotaOff && (want == QuotaAuto || want == have) {
		if have == QuotaClassic && inconsistent {
			if err := startRescan(fd); err != nil {
				return "", fmt.Errorf("count quotas again: %w", err)
			}
		}
		return have, nil
	}
	if have != QuotaOff {
		if err := p.mayReplace(have, want); err != nil {
			return "", err
		}
		if err := quotaControl(fd, quotaDisable); err != nil {
			return "", fmt.Errorf("switch %s quotas off: %w", have, err)
		}
	}
	return p.enableQuota(want)
}

// mayReplace refuses to switch accounting under living disks, whose limits would be lost, and on a file system that is not
// the pool's alone.
func (p *Pool) mayReplace(have, want Quota) error {
	names, err := listDir(p.disks)
	if err != nil {
		return err
	}
	if p.hosted || len(names) > 0 {
		return dayfly.Errorf(dayfly.CodeConflict, "the disk pool has %s quotas and disks, so it cannot change to %s", have, want).
			WithHint("use %s or auto, or begin with an empty pool", have)
	}
	return nil
}

func (p *Pool) enableQuota(want Quota) (Quota, error) {
	fd := int(p.disks.Fd())
	marked, err := p.mark()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, try := range []struct {
		mode    Quota
		command uint64
	}{{QuotaSimple, quotaEnableSimpl}, {QuotaClassic, quotaEnable}} {
		if want != QuotaAuto && want != try.mode {
			continue
		}
		err := quotaControl(fd, try.command)
		if err == nil {
			return try.mode, nil
		}
		errs = append(errs, fmt.Errorf("switch %s quotas on: %w", try.mode, err))
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) {
			break
		}
	}
	if marked {
		_ = os.Remove(filepath.Join(p.dir, markerName))
	}
	err = errors.Join(errs...)
	if want == QuotaSimple && errors.Is(err, unix.EINVAL) {
		return "", dayfly.Errorf(dayfly.CodeUnavailable, "this kernel has no simple quotas").
			WithHint("use quota auto or classic, or kernel 6.7 or later").WithCause(err)
	}
	return "", err
}

// mark notes on a btrfs of the host that quotas were off before us.
func (p *Pool) mark() (bool, error) {
	if !p.hosted {
		return false, nil
	}
	f, err := os.OpenFile(filepath.Join(p.dir, markerName), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return false, err
	}
	return true, f.Close()
}
