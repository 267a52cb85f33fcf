package timetable

import (
	"errors"
	"time"
	_ "time/tzdata" // a container may have no time zone database

	"github.com/robfig/cron/v3"
)

// Times returns a function that returns the first time of a schedule after a given time, or the
// zero time if there is none. The text of an error begins with the JSON pointer of the wrong
// argument of pipeline.schedule.
func Times(expression, timezone string) (func(time.Time) time.Time, error) {
	zone, err := time.LoadLocation(timezone)
	if err != nil || timezone == "Local" {
		return nil, errors.New("/timezone: want a name of the time zone database, such as Europe/Berlin or UTC")
	}
	times, err := cron.ParseStandard(expression)
	if err != nil {
		return nil, errors.New("/cron: want five fields (minute, hour, day of month, month, day of week), such as 30 6 * * MON-FRI, or @hourly, @daily or @every DURATION: " + err.Error())
	}
	if s, ok := times.(*cron.SpecSchedule); ok && s.Location != time.Local { //nolint:gosmopolitan // the parser's default
		return nil, errors.New("/cron: name the time zone in the argument timezone")
	}
	return func(after time.Time) time.Time { return times.Next(after.In(zone)) }, nil
}
