package sim

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed scenarios/*.yaml
var scenarioFiles embed.FS

// ScenarioNames lists the scenarios that come with the program, by name.
func ScenarioNames() []string {
	entries, err := scenarioFiles.ReadDir("scenarios")
	if err != nil {
		return nil // the folder is embedded
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// LoadScenario reads a scenario that comes with the program.
func LoadScenario(name string) (*Scenario, error) {
	text, err := scenarioFiles.ReadFile(path.Join("scenarios", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("scenario %q does not come with the program: one of %s", name, strings.Join(ScenarioNames(), ", "))
	}
	s, err := ParseScenario(text)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", name, err)
	}
	return s, nil
}
