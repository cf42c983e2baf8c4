package agent

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"dayfly.dev/dayfly"
)

// pathDefault is where programs are looked for, after the user's own.
const pathDefault = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// What programs are told about their terminal.
const (
	termPipes    = "dumb"
	termTerminal = "xterm-256color"
)

// headBytes is how much of a file is read to tell a script from a binary.
const headBytes = 128

// scriptDescriptor is where the shell finds a command that is too long for an argument. It is closed before the command's
// first word runs, so that the command sees only its three standard streams.
const (
	scriptPath  = "/proc/self/fd/3"
	scriptStart = "exec 3<&-; "
)

// plan settles user, directory, environment and program of a command. The caller closes it.
func (a *Agent) plan(ctx context.Context, spec dayfly.ProcessSpec) (*plan, error) {
	who, err := a.lookup(spec.User)
	if err != nil {
		return nil, err
	}
	p := &plan{who: who}
	var planErr error
	err = a.threads.quick(ctx, who.rights, func() {
		var pwd string
		if p.cwd, pwd, planErr = a.openCwd(spec, who); planErr == nil {
			p.env = a.environ(spec, who, pwd)
			planErr = p.program(spec, pwd)
		}
	})
	if err == nil {
		err = planErr
	}
	if err != nil {
		if p.cwd != nil {
			_ = p.cwd.Close()
		}
		return nil, err
	}
	return p, nil
}

// openCwd opens the directory to run in, checked with the user's rights, and gives the name for PWD. The default directory
// of an image may be missing, and then / stands in, as at a login.
func (a *Agent) openCwd(spec dayfly.ProcessSpec, who identity) (*os.File, string, error) {
	name := spec.Cwd
	if name == "" {
		if name = who.home; spec.User == "" {
			name = a.cfg.Workdir
		}
	}
	abs, err := absolute(who.home, name)
	if err != nil {
		return nil, "", dayfly.Errorf(dayfly.CodeInvalid, "cwd: %q is not a path", spec.Cwd)
	}
	f, err := openDir(abs)
	if err != nil && spec.Cwd == "" {
		abs = "/"
		f, err = openDir(abs)
	}
	if err != nil {
		return nil, "", dayfly.Errorf(dayfly.CodeInvalid, "cwd: %q cannot be entered: %s", spec.Cwd, errnoText(err)).
			WithDetail("field", "cwd")
	}
	if strings.Contains(abs, "..") {
		if real, err := os.Readlink(fdPath(f)); err == nil {
			abs = real
		}
	}
	return f, path.Clean(abs), nil
}

// openDir opens a directory that the calling thread may enter.
func openDir(name string) (*os.File, error) {
	fd, err := open(unix.AT_FDCWD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	check, err := open(fd, ".", unix.O_PATH|unix.O_DIRECTORY, 0) // needs the right to search it
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	_ = unix.Close(check)
	return os.NewFile(uintptr(fd), name), nil
}

// environ builds a command's environment: the agent's few defaults, then the image's and the sandbox's, then the command's.
func (a *Agent) environ(spec dayfly.ProcessSpec, who identity, pwd string) []string {
	env := map[string]string{
		"LANG": "C.UTF-8", "TERM": termPipes, "HOME": who.home, "PATH": path.Join(who.home, ".local/bin") + ":" + pathDefault,
	}
	if spec.Terminal != nil {
		env["TERM"] = termTerminal
	}
	if who.name != "" {
		env["USER"], env["LOGNAME"] = who.name, who.name
	}
	maps.Copy(env, a.cfg.Env)
	env["PWD"] = pwd
	maps.Copy(env, spec.Env)
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// program settles what is executed.
func (p *plan) program(spec dayfly.ProcessSpec, pwd string) error {
	if spec.Command == "" {
		p.argv = spec.Argv
		p.path, p.fail = findProgram(spec.Argv[0], p.env, pwd)
		return nil
	}
	shell, name := findShell("bash", "sh")
	if shell == "" {
		return dayfly.Errorf(dayfly.CodeInvalid, "the image has no shell for a command string").WithHint("use argv")
	}
	p.path = shell
	if len(spec.Command) <= argStringMax {
		p.argv = []string{name, "-c", spec.Command}
		return nil
	}
	p.argv = []string{name, "-c", ". " + scriptPath}
	var err error
	p.script, err = memoryFile(scriptStart + spec.Command)
	return err
}

// memoryFile makes an anonymous file with the content.
func memoryFile(content string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err := f.WriteString(content); err != nil {
		_ = f.Close()
		return nil, noResources(err)
	}
	return f, nil
}

// shellDirs are where a shell is looked for, whatever the PATH says.
var shellDirs = [...]string{"/bin", "/usr/bin", "/usr/local/bin"}

// findShell gives path and name of the first shell by the given names, or nothing. One that cannot be executed is the last
// resort: running it then says so.
func findShell(names ...string) (shell, name string) {
	for _, n := range names {
		for _, dir := range shellDirs {
			file := dir + "/" + n
			var st unix.Stat_t
			if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if st.Mode&0o111 != 0 {
				return file, n
			}
			if shell == "" {
				shell, name = file, n
			}
		}
	}
	return shell, name
}

// findProgram looks a program up as a shell does: by PATH unless its name has a slash.
func findProgram(name string, env []string, pwd string) (string, *failure) {
	if strings.Contains(name, "/") {
		return checkProgram(name, name, pwd)
	}
	search := pathDefault
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	var denied *failure
	for _, dir := range strings.Split(search, ":") {
		if dir == "" {
			dir = "."
		}
		file, fail := checkProgram(name, dir+"/"+name, pwd)
		if fail == nil {
			return file, nil
		}
		if fail.code == codeNoExec && denied == nil && !strings.HasSuffix(fail.text, "directory") {
			denied = fail
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &failure{codeNotFound, name + ": command not found"}
}

// checkProgram tells whether a file can be executed, as far as its mode shows. The kernel has the last word.
func checkProgram(name, file, pwd string) (string, *failure) {
	at := file
	if !path.IsAbs(at) {
		at = pwd + "/" + file
	}
	var st unix.Stat_t
	switch err := unix.Stat(at, &st); {
	case err == unix.ENOENT:
		return "", &failure{codeNotFound, name + ": " + errnoText(err)}
	case err != nil:
		return "", &failure{codeNoExec, name + ": " + errnoText(err)}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return "", &failure{codeNoExec, name + ": Is a directory"}
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0:
		return "", &failure{codeNoExec, name + ": " + errnoText(unix.EACCES)}
	}
	return file, nil
}

// isScript tells whether a file that the kernel does not execute looks like text, which a shell then runs.
func (a *Agent) isScript(p *plan) bool {
	head := make([]byte, headBytes)
	n := 0
	_ = a.threads.quick(context.Background(), p.who.rights, func() {
		fd, err := open(int(p.cwd.Fd()), p.path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		n, _ = unix.Read(fd, head)
	})
	line, _, _ := bytes.Cut(head[:max(0, n)], []byte("\n"))
	return n > 0 && !bytes.ContainsRune(line, 0)
}
