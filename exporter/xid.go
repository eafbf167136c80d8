package exporter

// Classes of events: who has to look.
const (
	ClassApplication   = "application"   // the program's owner, first
	ClassHardware      = "hardware"      // the device, or how it is fitted
	ClassFabric        = "fabric"        // links between devices
	ClassSoftware      = "software"      // driver, firmware, virtualisation
	ClassInformational = "informational" // nobody now
	ClassUnknown       = "unknown"       // a human
)

// Actions, by the names of NVIDIA's catalogue of Xids for Ampere and later. The
// workflows need more than the number to be decided.
const (
	ActionIgnore           = "IGNORE"
	ActionRestartApp       = "RESTART_APP"
	ActionResetGPU         = "RESET_GPU"
	ActionRestartNode      = "RESTART_BM"
	ActionRestartVM        = "RESTART_VM"
	ActionCheckMechanicals = "CHECK_MECHANICALS"
	ActionCheckUVM         = "CHECK_UVM"
	ActionUpdate           = "UPDATE_SWFW"
	ActionSupport          = "CONTACT_SUPPORT"
	ActionXid45            = "WORKFLOW_XID_45"
	ActionXid48            = "WORKFLOW_XID_48"
	ActionNVLink           = "WORKFLOW_NVLINK_ERR"
	ActionNVLink5          = "WORKFLOW_NVLINK5_ERR"
	ActionXid154           = "XID_154" // do what the recovery action says
)

// xidInfo is what a range of Xids means.
type xidInfo struct {
	first, last   int
	class, action string
	what          string
}

// xids is in the order of the codes. Those that NVIDIA gives no action for, and
// those that it lists as unused, are for a human.
var xids = [...]xidInfo{
	{8, 8, ClassApplication, ActionRestartApp, "the GPU stopped processing"},
	{11, 11, ClassApplication, ActionRestartApp, "invalid or corrupted push buffer stream"},
	{13, 13, ClassApplication, ActionRestartApp, "graphics engine exception"},
	{14, 14, ClassInformational, ActionIgnore, "injected from user space"},
	{25, 25, ClassApplication, ActionRestartApp, "illegal push buffer stream"},
	{31, 31, ClassApplication, ActionRestartApp, "GPU memory page fault"},
	{32, 32, ClassApplication, ActionRestartApp, "invalid or corrupted push buffer stream"},
	{37, 38, ClassInformational, ActionIgnore, "driver firmware error"},
	{39, 41, ClassApplication, ActionRestartApp, "copy engine exception"},
	{43, 43, ClassInformational, ActionIgnore, "a program's channel was reset"},
	{44, 44, ClassInformational, ActionIgnore, "graphics engine fault during a context switch"},
	{45, 45, ClassApplication, ActionXid45, "a program was torn down, by itself or after an earlier error"},
	{46, 46, ClassHardware, ActionResetGPU, "the GPU stopped processing"},
	{48, 48, ClassHardware, ActionXid48, "uncorrectable ECC error"},
	{54, 54, ClassHardware, ActionCheckMechanicals, "auxiliary power is not connected"},
	{60, 60, ClassApplication, ActionRestartApp, "video processor exception"},
	{62, 62, ClassHardware, ActionResetGPU, "an internal micro-controller halted"},
	{63, 63, ClassInformational, ActionIgnore, "a memory row was remapped"},
	{64, 64, ClassHardware, ActionResetGPU, "a memory row could not be remapped"},
	{66, 67, ClassInformational, ActionIgnore, "illegal access by the driver"},
	{68, 68, ClassApplication, ActionRestartApp, "video decoder exception"},
	{69, 69, ClassApplication, ActionRestartApp, "graphics engine class error"},
	{70, 72, ClassApplication, ActionRestartApp, "copy engine error"},
	{74, 74, ClassFabric, ActionNVLink, "NVLink error"},
	{75, 77, ClassApplication, ActionRestartApp, "copy engine error"},
	{78, 78, ClassSoftware, ActionUpdate, "a virtual GPU did not start"},
	{79, 79, ClassHardware, ActionRestartNode, "the GPU fell off the bus"},
	{80, 80, ClassApplication, ActionRestartApp, "corrupted data was sent to the GPU"},
	{82, 82, ClassApplication, ActionRestartApp, "JPEG engine error"},
	{83, 84, ClassApplication, ActionRestartApp, "video decoder error"},
	{85, 85, ClassApplication, ActionRestartApp, "copy engine error"},
	{86, 86, ClassApplication, ActionRestartApp, "optical flow engine exception"},
	{88, 89, ClassApplication, ActionRestartApp, "video decoder error"},
	{92, 92, ClassInformational, ActionIgnore, "many single-bit ECC errors"},
	{93, 93, ClassInformational, ActionIgnore, "the InfoROM's wear limit keeps it from being written"},
	{94, 94, ClassApplication, ActionRestartApp, "memory error that was contained to one program"},
	{95, 95, ClassHardware, ActionResetGPU, "memory error that was not contained"},
	{96, 98, ClassApplication, ActionRestartApp, "video decoder error"},
	{99, 105, ClassApplication, ActionRestartApp, "JPEG engine error"},
	{106, 107, ClassInformational, ActionIgnore, "test message of the board management"},
	{108, 108, ClassInformational, ActionIgnore, "NVLink remote translation error"},
	{109, 109, ClassHardware, ActionResetGPU, "a context switch timed out"},
	{110, 110, ClassHardware, ActionResetGPU, "security fault"},
	{119, 119, ClassHardware, ActionResetGPU, "the GPU's system processor did not answer"},
	{120, 120, ClassHardware, ActionResetGPU, "error of the GPU's system processor"},
	{121, 121, ClassInformational, ActionIgnore, "corrected errors on the link to the CPU"},
	{126, 135, ClassApplication, ActionRestartApp, "copy engine error"},
	{136, 136, ClassFabric, ActionResetGPU, "a link could not be trained"},
	{137, 137, ClassInformational, ActionIgnore, "illegal peer access over NVLink"},
	{139, 139, ClassApplication, ActionRestartApp, "optical flow engine error"},
	{140, 140, ClassHardware, ActionResetGPU, "ECC error that was not recovered"},
	{141, 141, ClassInformational, ActionIgnore, "error of the CUDA fast path"},
	{142, 142, ClassUnknown, ActionSupport, "video encoder error"},
	{143, 143, ClassHardware, ActionResetGPU, "the GPU could not be initialised"},
	{144, 150, ClassFabric, ActionNVLink5, "NVLink error"},
	{151, 151, ClassSoftware, ActionRestartVM, "key rotation error"},
	{152, 153, ClassInformational, ActionIgnore, "error of the deep learning accelerator"},
	{154, 154, ClassInformational, ActionXid154, "the recovery action changed"},
	{155, 155, ClassFabric, ActionResetGPU, "a link was taken down by software"},
	{156, 156, ClassHardware, ActionResetGPU, "a resource was retired"},
	{157, 157, ClassInformational, ActionIgnore, "a resource could not be retired"},
	{158, 158, ClassHardware, ActionResetGPU, "fatal timeout"},
	{159, 159, ClassSoftware, ActionCheckUVM, "error on the link to the CPU"},
	{160, 160, ClassInformational, ActionIgnore, "a memory channel was retired"},
	{161, 161, ClassInformational, ActionIgnore, "a memory channel could not be retired"},
	{162, 165, ClassUnknown, ActionSupport, "power smoothing changed or is worn out"},
	{166, 166, ClassUnknown, ActionSupport, "traffic over a link before it was encrypted"},
	{167, 167, ClassUnknown, ActionSupport, "fatal PCIe timeout"},
	{168, 168, ClassUnknown, ActionSupport, "errors in protected memory"},
	{169, 169, ClassUnknown, ActionSupport, "an internal micro-controller halted"},
	{170, 170, ClassUnknown, ActionSupport, "interrupt of a link in confidential mode"},
	{171, 171, ClassUnknown, ActionSupport, "uncorrectable error in device memory"},
	{172, 172, ClassUnknown, ActionSupport, "uncorrectable error in on-chip memory"},
}

// xidRecovery says that the recovery action, which is read, is another.
const xidRecovery = 154

// unknownXid is for every other code: those that NVIDIA lists as unused, and
// those of later drivers.
var unknownXid = xidInfo{class: ClassUnknown, action: ActionSupport, what: "not in this version's table"}

func xidOf(code int) *xidInfo {
	for i := range xids {
		if x := &xids[i]; code >= x.first && code <= x.last {
			return x
		}
	}
	return &unknownXid
}

// recoveryActions are the driver's own verdicts, by their number.
var recoveryActions = [...]struct{ class, action, what string }{
	{ClassInformational, ActionIgnore, "none"},
	{ClassHardware, ActionResetGPU, "reset the GPU"},
	{ClassHardware, ActionRestartNode, "reboot the node"},
	{ClassFabric, "DRAIN_P2P", "drain peer-to-peer traffic"},
	{ClassHardware, "DRAIN_AND_RESET", "drain peer-to-peer traffic and reset the GPU"},
	{ClassFabric, "RECOVER_IMEX_DOMAIN", "recover the IMEX domain"},
	{ClassHardware, "BUS_RESET", "reset the GPU's PCIe bus"},
	{ClassHardware, ActionRestartNode, "reboot the system"},
}
