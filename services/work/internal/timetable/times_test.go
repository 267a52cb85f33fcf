package timetable

import (
	"strings"
	"testing"
	"time"
)

// TestTimes checks the times of expressions in time zones, also on the days on which
// summer time begins and ends, and the errors of wrong ones.
func TestTimes(t *testing.T) {
	at := func(s string) time.Time {
		out, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct{ cron, zone, after, want string }{
		{"30 6 * * *", "UTC", "2026-03-01T12:00:00Z", "2026-03-02T06:30:00Z"},
		{"30 6 * * *", "America/New_York", "2026-03-01T12:00:00Z", "2026-03-02T11:30:00Z"},
		{"0 9 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T07:00:00Z"}, // summer time has begun
		{"0 9 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T08:00:00Z"}, // and ended
		{"@daily", "Asia/Tokyo", "2026-03-01T12:00:00Z", "2026-03-01T15:00:00Z"},
		{"0 0 30 2 *", "UTC", "2026-03-01T12:00:00Z", ""},
	} {
		next, err := Times(c.cron, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := next(at(c.after)); c.want == "" && !got.IsZero() || c.want != "" && !got.Equal(at(c.want)) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	for args, want := range map[string]string{
		"every day|UTC":                    "/cron",
		"* * * * * *|UTC":                  "/cron",
		"CRON_TZ=Asia/Tokyo 0 9 * * *|UTC": "/cron: name the time zone",
		"@daily|Mars/Olympus":              "/timezone",
		"@daily|Local":                     "/timezone",
		"@daily|../../etc/passwd":          "/timezone",
	} {
		cron, zone, _ := strings.Cut(args, "|")
		if _, err := Times(cron, zone); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
