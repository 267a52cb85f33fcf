// Package bound checks the numbers of the llm document. It is pure.
package bound

import "fmt"

// Day is a day in milliseconds, the maximum of most time limits.
const Day = 24 * 60 * 60 * 1000

// Check returns an error that names the member unless its value is from 0 to most.
func Check[N int | int64](member string, value, most N) error {
	if value < 0 || value > most {
		return fmt.Errorf("%s: %d: want a number from 0 to %d", member, value, most)
	}
	return nil
}
