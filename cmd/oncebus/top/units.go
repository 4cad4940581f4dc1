package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// count writes a whole number with commas between groups of three digits.
func count(n float64) string {
	text := strconv.FormatFloat(n, 'f', 0, 64)
	digits := strings.TrimPrefix(text, "-")
	sign := text[:len(text)-len(digits)]
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// rate writes a number per second; small numbers have one decimal.
func rate(n float64) string {
	if n != 0 && n < 99.95 {
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return count(n)
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + " %" }

// duration writes a number of seconds; a negative number means that it is not known.
func duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case seconds < 0:
		return "unknown"
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", seconds)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}

func size(n float64) string {
	for _, unit := range []struct {
		bytes float64
		name  string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.bytes {
			return fmt.Sprintf("%.1f %s", n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}
