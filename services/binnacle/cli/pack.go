package cli

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// packTemplates holds a folder for each language, with the program main and the manifest of
// a pack.
//
//go:embed packtemplates
var packTemplates embed.FS

// packLanguages maps the languages of pack new to the extension of the program.
var packLanguages = map[string]string{"go": ".go", "python": ".py", "shell": ".sh", "typescript": ".ts"}

// newPackCmd returns the command pack, which shows, runs, writes, checks and tests packs.
func newPackCmd(c *env) *cobra.Command {
	list := newToolsCmd(c)
	list.Use, list.Short, list.Example = "list", "List the packs of the mesh", "  binnacle pack list\n  binnacle pack list --output json"
	run := newCallCmd(c)
	run.Use, run.Short, run.Example = "run NAME [ARGS-JSON]", "Call a pack and print its output", "  binnacle pack run image.convert '{\"image_b64\":\"…\",\"format\":\"png\"}'"
	return group(&cobra.Command{
		Use:     "pack COMMAND",
		Short:   "Show, run, write, check, test and install packs",
		Long:    "Show and run the packs of the mesh, write, check and test packs in a folder,\nand install signed archives of packs.",
		Example: "  binnacle pack list\n  binnacle pack new count --language python --packs packs\n  binnacle pack validate packs",
	}, list, &cobra.Command{
		Use:               "info NAME",
		Short:             "Show a pack with its schemas",
		Example:           "  binnacle pack info image.convert",
		Args:              takes(1, 1),
		ValidArgsFunction: completeTools(c),
		RunE:              func(cmd *cobra.Command, args []string) error { return packInfo(cmd.Context(), c, args[0]) },
	}, run, newPackNewCmd(c), newPackValidateCmd(c), newPackTestCmd(c), newPackKeyCmd(c), newPackArchiveCmd(c), newPackInstallCmd(c), newPackUninstallCmd(c), newPackApproveCmd(c))
}

// packInfo prints the document of one tool.
func packInfo(ctx context.Context, c *env, name string) error {
	tools, err := listTools(ctx, c)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(tools, func(t tool) bool { return t.Name == name })
	if at < 0 {
		var names []string
		for _, t := range tools {
			names = append(names, t.Name)
		}
		return fail(exitFailed, "no pack %s%s; `binnacle pack list` lists them", name, didYouMean(suggest.Near(name, names)))
	}
	t := tools[at]
	return c.print(t, func() {
		fmt.Fprintf(c.out, "%s %s\n%s\n", t.Name, t.Version, t.Description)
		if t.Progress {
			fmt.Fprintln(c.out, "Calls report their progress.")
		}
		if t.Concurrency != "" {
			fmt.Fprintf(c.out, "Concurrency class: %s\n", t.Concurrency)
		}
		fmt.Fprintf(c.out, "\ninput\n%s\n\noutput\n%s\n", indent(t.InputSchema), indent(t.OutputSchema))
	})
}

// packNewRE matches the names of new packs, which become the names of files.
var packNewRE = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,50}$`)

// newPackNewCmd returns the command pack new.
func newPackNewCmd(c *env) *cobra.Command {
	var folder, language string
	cmd := &cobra.Command{
		Use:               "new NAME",
		Short:             "Write the program and the manifest of a new pack",
		Long:              "Write the program and the manifest of a new pack, cmd.NAME, into a folder of packs. The\nprogram reads one JSON document from standard input and writes one to standard output.",
		Example:           "  binnacle pack new count --language shell --packs packs",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			return newPack(c, args[0], language, folder)
		},
	}
	cmd.Flags().StringVar(&folder, "packs", "packs", "`FOLDER` of packs")
	cmd.Flags().StringVar(&language, "language", "shell", "`LANGUAGE` of the program: go, python, shell or typescript")
	return cmd
}

// newPack writes the files of a new pack. It does not replace files.
func newPack(c *env, name, language, folder string) error {
	ext, ok := packLanguages[language]
	if !ok {
		return fail(exitUsage, "--language: %q is not go, python, shell or typescript", language)
	}
	if !packNewRE.MatchString(name) {
		return fail(exitUsage, "NAME: %q: want lower-case letters, digits and hyphens", name)
	}
	program, mode := filepath.Join(folder, name+ext), os.FileMode(0o755)
	if language == "go" { // its program is built to FOLDER/NAME
		program, mode = filepath.Join(folder, name+".src", "main.go"), 0o644
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	manifest := filepath.Join(folder, name+".pack.yaml")
	for _, f := range []struct {
		path, from string
		mode       os.FileMode
	}{{program, "main" + ext + ".txt", mode}, {manifest, "pack.yaml", 0o644}} {
		body, err := packTemplates.ReadFile("packtemplates/" + language + "/" + f.from)
		if err != nil {
			return err
		}
		if err := writeNew(f.path, strings.ReplaceAll(string(body), "NAME", name), f.mode); err != nil {
			return err
		}
	}
	return c.print(map[string]string{"manifest": manifest, "program": program, "tool": "cmd." + name}, func() {
		fmt.Fprintf(c.out, "%s\n%s\n", program, manifest)
	})
}

// writeNew writes a file that does not exist yet.
func writeNew(path, body string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, os.ErrExist) {
		return fail(exitFailed, "%s exists: remove it, or choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(body)
	return errors.Join(err, f.Close())
}

// newPackValidateCmd returns the command pack validate.
func newPackValidateCmd(c *env) *cobra.Command {
	var of packPlaces
	cmd := &cobra.Command{
		Use:     "validate [FOLDER]",
		Short:   "Check the packs of a folder",
		Long:    "Check the manifests, schemas and programs of a folder of packs as a session-runner does\nat its start. The default folder is packs. No program is run.",
		Example: "  binnacle pack validate packs",
		Args:    takes(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return validatePacks(c, append(args, "packs")[0], &of)
		},
	}
	of.flags(cmd.Flags())
	return cmd
}

// packPlaces holds the settings of the session-runner that decide where packs run.
type packPlaces struct{ images, scripts string }

// flags adds the flags of the settings.
func (p *packPlaces) flags(f *pflag.FlagSet) {
	f.StringVar(&p.images, "images", "", "the session-runner's `folder` of images, as this host sees it")
	variable(f, "images", "BINNACLE_IMAGES")
	f.StringVar(&p.scripts, "scripts", "", "`PLACE` of scripts without an image: host, or the name of an image")
	variable(f, "scripts", "BINNACLE_SCRIPTS")
}

// check reads the packs of a folder with these settings.
func (p *packPlaces) check(dir string) ([]sessionrunner.Checked, []error) {
	return sessionrunner.CheckPacks(dir, p.images, p.scripts)
}

// validatePacks prints the packs of a folder. If a pack is not valid, it prints none
// and returns an error with all problems.
func validatePacks(c *env, dir string, of *packPlaces) error {
	packs, problems := of.check(dir)
	type valid struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Tier    string `json:"tier"`
	}
	list := []valid{}
	for _, p := range packs {
		list = append(list, valid{p.Tool.Tool, p.Tool.Version, p.Tool.Sandbox.Tier})
	}
	if len(problems) > 0 {
		return fail(exitFailed, "%v", errors.Join(problems...))
	}
	return c.table(list, []output.Column{{Heading: "NAME", Min: 23}, {Heading: "VERSION", Min: 3}, {Heading: "TIER"}}, func(g *output.Grid) {
		for _, t := range list {
			g.Add(t.Name, t.Version, t.Tier)
		}
	})
}
