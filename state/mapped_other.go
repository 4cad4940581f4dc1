//go:build !linux

package state

import "errors"

func residentBytes() (all, files int64, err error) { return 0, 0, errors.ErrUnsupported }

func valueLogRanges(string) ([]addressRange, error) { return nil, errors.ErrUnsupported }

func (addressRange) release() error { return errors.ErrUnsupported }
