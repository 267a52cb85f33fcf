package output

import (
	"os"

	"golang.org/x/term"
)

// Terminal reports whether v is a file that is connected to a terminal.
func Terminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Style adds colour to text by ANSI escape sequences. The zero value adds none.
type Style struct{ on bool }

// StyleFor returns the style for output to w. It has colour if w is a terminal, NO_COLOR
// is unset or empty (https://no-color.org), and TERM is not dumb.
func StyleFor(w any, getenv func(string) string) Style {
	return Style{on: Terminal(w) && coloured(getenv)}
}

// coloured reports whether the environment allows colour.
func coloured(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Bold returns text in bold, for headings.
func (s Style) Bold(text string) string { return s.wrap("1", text) }

// Good returns text in green, for success.
func (s Style) Good(text string) string { return s.wrap("32", text) }

// Bad returns text in red, for failure.
func (s Style) Bad(text string) string { return s.wrap("31", text) }

func (s Style) wrap(code, text string) string {
	if !s.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
