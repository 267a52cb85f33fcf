package manual

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Pages are the manual pages of a command and of all below it, in man(7) form, by
// file name.
func Pages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	Walk(root, func(cmd *cobra.Command) { pages[pageName(cmd)+".1"] = page(cmd) })
	return pages
}

// pageName is the name of a command's page.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page is a command's page.
func page(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"binnacle\" \"Binnacle manual\"\n.nh\n.ad l\n", roff(strings.ToUpper(pageName(cmd))))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n[\\fIflags\\fR]\n", roff(use(cmd)))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", paragraphs(description(cmd)))
	options(&b, "OPTIONS", Flags(cmd))
	if cmd.HasParent() {
		options(&b, "OPTIONS OF EVERY COMMAND", Flags(cmd.Root()))
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(unindent(cmd.Example)))
	}
	seeAlso(&b, cmd)
	return b.Bytes()
}

// options lists flags under a heading.
func options(b *bytes.Buffer, heading string, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", heading)
	for _, f := range flags {
		flag, text := spelling(f)
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(flag), roff(text))
	}
}

// seeAlso names the pages of a command's parent and subcommands.
func seeAlso(b *bytes.Buffer, cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, pageName(sub))
		}
	}
	var refs []string
	for _, name := range names {
		refs = append(refs, `\fB`+roff(name)+`\fR(1)`)
	}
	if len(refs) > 0 {
		fmt.Fprintf(b, ".SH SEE ALSO\n%s\n", strings.Join(refs, ",\n"))
	}
}

// paragraphs is text in which an empty line separates paragraphs.
func paragraphs(text string) string { return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") }

// roff keeps text from being read as requests: backslashes, hyphens and what is not
// ASCII are escaped, and so is a line that begins with a dot or a quote.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = ascii(line)
		lines[i] = line
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// ascii writes what is not ASCII as groff names it.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}
