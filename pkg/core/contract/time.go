package contract

import (
	"fmt"
	"time"
)

// TimeFormat is the form of the times in the ledger: UTC with milliseconds. Two times in
// this form compare as strings in the same order as they compare as times.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// Time returns t in TimeFormat, in UTC and truncated to milliseconds. The year of t in
// UTC must be between 0 and 9999.
func Time(t time.Time) string { return t.UTC().Format(TimeFormat) }

// ParseTime parses a time in TimeFormat. It returns an error for any other form,
// and for a day or time of day that does not exist.
func ParseTime(s string) (time.Time, error) {
	if !separated(s) {
		return time.Time{}, errTime(s)
	}
	year, month, day := number(s[0:4]), number(s[5:7]), number(s[8:10])
	hour, minute, second, ms := number(s[11:13]), number(s[14:16]), number(s[17:19]), number(s[20:23])
	if (year|month|day|hour|minute|second|ms) < 0 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, errTime(s)
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, ms*1e6, time.UTC)
	if y, m, d := t.Date(); y != year || int(m) != month || d != day { // time.Date normalizes days that do not exist
		return time.Time{}, errTime(s)
	}
	return t, nil
}

func errTime(s string) error { return fmt.Errorf("time %q is not in the form %s", s, TimeFormat) }

// separated reports whether s has the length of TimeFormat, and its separators at their
// positions.
func separated(s string) bool {
	return len(s) == len(TimeFormat) && s[4] == '-' && s[7] == '-' && s[10] == 'T' && s[13] == ':' && s[16] == ':' && s[19] == '.' && s[23] == 'Z'
}

// number returns the value of decimal digits, or -1 if another character occurs.
func number(digits string) (v int) {
	for i := range len(digits) {
		c := digits[i] - '0'
		if c > 9 {
			return -1
		}
		v = v*10 + int(c)
	}
	return v
}
