// Code generated from the catalogue by telemetry/gen. DO NOT EDIT.

package telemetry

// Ids of the catalogue's series.
const (
	GPUUtilizationRatio              ID = 1
	GPUMemoryUtilizationRatio        ID = 2
	GPUBusySeconds                   ID = 3
	GPUMemoryUsedBytes               ID = 4
	GPUTemperatureCelsiusCore        ID = 5
	GPUTemperatureCelsiusMemory      ID = 6
	GPUThermalHeadroomCelsius        ID = 7
	GPUPowerWatts                    ID = 8
	GPUClockHertzSM                  ID = 9
	GPUClockHertzMemory              ID = 10
	GPUClockHertzGraphics            ID = 43
	GPUClockHertzVideo               ID = 44
	GPUThrottleActiveSWPower         ID = 110
	GPUThrottleActiveSWThermal       ID = 111
	GPUThrottleActiveHWThermal       ID = 112
	GPUThrottleActiveHWSlowdown      ID = 113
	GPUThrottleActivePowerBrake      ID = 114
	GPUThrottleActiveSyncBoost       ID = 115
	GPUThrottleActiveIdle            ID = 116
	GPUThrottleActiveOther           ID = 117
	GPUEnergyJoules                  ID = 12
	GPUNVLinkTotalBytesTx            ID = 13
	GPUNVLinkTotalBytesRx            ID = 14
	GPUSMActiveRatio                 ID = 15
	GPUTensorActiveRatio             ID = 16
	GPUDRAMActiveRatio               ID = 17
	GPUUp                            ID = 18
	GPUThrottleSecondsSWPower        ID = 120
	GPUThrottleSecondsSWThermal      ID = 121
	GPUThrottleSecondsHWThermal      ID = 122
	GPUThrottleSecondsHWSlowdown     ID = 123
	GPUThrottleSecondsPowerBrake     ID = 124
	GPUThrottleSecondsSyncBoost      ID = 125
	GPUThrottleSecondsIdle           ID = 126
	GPUThrottleSecondsOther          ID = 127
	GPUMemoryTotalBytes              ID = 30
	GPUMemoryReservedBytes           ID = 37
	GPUPowerLimitWatts               ID = 31
	GPUPowerLimitMinWatts            ID = 32
	GPUPowerLimitDefaultWatts        ID = 33
	GPUPowerLimitMaxWatts            ID = 34
	GPUSlowdownThresholdCelsius      ID = 35
	GPUSlowdownOffsetCelsius         ID = 36
	GPUFabricState                   ID = 40
	GPURecoveryAction                ID = 41
	GPUNVLinkLinksExpected           ID = 42
	GPUPCIeReplays                   ID = 50
	GPUPCIeLinkWidth                 ID = 51
	GPUPCIeLinkWidthMax              ID = 52
	GPUPCIeLinkGeneration            ID = 53
	GPUPCIeLinkGenerationMax         ID = 54
	GPUPCIeBytesTx                   ID = 55
	GPUPCIeBytesRx                   ID = 56
	GPUECCErrorsCorrectedVolatile    ID = 60
	GPUECCErrorsCorrectedAggregate   ID = 61
	GPUECCErrorsUncorrectedVolatile  ID = 62
	GPUECCErrorsUncorrectedAggregate ID = 63
	GPURowRemapPending               ID = 64
	GPURowRemapFailed                ID = 65
	GPURowRemapCorrectable           ID = 66
	GPURowRemapUncorrectable         ID = 67
	GPUInfo                          ID = 80
	GPUSampleInvalid                 ID = 81
	GPUXidErrors                     ID = 82
	GPUMIGFreeSlices                 ID = 83
	GPUProcesses                     ID = 84
	GPUReaderFailing                 ID = 86
	GPUHealth                        ID = 90
	GPUAllocated                     ID = 91
	GPUSampleAge                     ID = 92
	GPUWorkloadInfo                  ID = 93
	GPUIdle                          ID = 94
	GPUHealthScore                   ID = 95
	GPUContention                    ID = 96
	GPUNVLinkSaturation              ID = 97
	GPUNVLinkLinksUp                 ID = 98
	GPUNVLinkErrorsPerSecond         ID = 99
	GPUThermalHeadroomSlope          ID = 100
	GPUTimeToSlowdown                ID = 101
	GPUThermalResistance             ID = 102
	GPUThermalTimeConstant           ID = 103
	GPUThermalBase                   ID = 104
	GPUAllocationInfo                ID = 185
	GPUAllocations                   ID = 186
	GPUUseState                      ID = 187
	GPUSharedBy                      ID = 188
	GPUSharingInfo                   ID = 189
	LinkNVLinkBytesTx                ID = 200
	LinkNVLinkBytesRx                ID = 201
	LinkNVLinkErrorsCRCFlit          ID = 202
	LinkNVLinkErrorsCRCData          ID = 203
	LinkNVLinkErrorsReplay           ID = 204
	LinkNVLinkErrorsRecovery         ID = 205
	LinkNVLinkUp                     ID = 206
	InstanceMIGInstanceInfo          ID = 300
	InstanceMIGMemoryUsedBytes       ID = 301
	InstanceMIGSMActiveRatio         ID = 302
	ProcessMemoryBytes               ID = 320
	ProcessMemberInfo                ID = 340
	ProcessMemberMemoryUsedBytes     ID = 341
	ProcessMemberMemoryLimitBytes    ID = 342
	ProcessMemberSMLimitRatio        ID = 343
	NodeHostCPUUtilizationRatio      ID = 400
	NodeHostCPUIOWaitRatio           ID = 401
	NodeHostLoad1                    ID = 402
	NodeHostPressureRatio            ID = 403
	NodeHostMemoryTotalBytes         ID = 410
	NodeHostMemoryAvailableBytes     ID = 411
	NodeHostNetworkBytes             ID = 420
	NodeHostNetworkErrors            ID = 421
	NodeHostDiskBytes                ID = 430
	NodeHostDiskBusySeconds          ID = 431
	NodeHostMountStalled             ID = 432
	NodeHostTemperatureCelsius       ID = 440
	NodeHostInletCelsius             ID = 441
	NodeHostFanRPM                   ID = 442
	NodeHostPowerWatts               ID = 443
	NodeHostVerdict                  ID = 450
	NodeGPUAirCelsius                ID = 451
	NodeFabricBytes                  ID = 500
	NodeFabricErrors                 ID = 501
	NodeFabricUp                     ID = 502
	NodeFabricSpeed                  ID = 503
	NodeFabricCongestionWait         ID = 504
	NodeHostPsuUp                    ID = 470
	NodeHostFeedWatts                ID = 471
	NodeHostFilesystemUsedRatio      ID = 472
	NodeHostDiskHealthy              ID = 473
	NodeHostDiskWearRatio            ID = 474
	NodeGPUPassthroughInfo           ID = 460
	NodeUp                           ID = 600
	NodeLastFrame                    ID = 601
	NodeGpusExpected                 ID = 602
	NodeInfo                         ID = 603
	NodeClockSkew                    ID = 604
	NodeDoubtful                     ID = 605
	SelfFramesDropped                ID = 610
	SelfFrameLag                     ID = 611
	NodeReaderSuccess                ID = 620
	NodeReaderDuration               ID = 621
	SelfDriverCalls                  ID = 622
	SelfDecisions                    ID = 630
	SelfRefusals                     ID = 631
	SelfEffect                       ID = 632
	SelfBreakerOpen                  ID = 633
	SelfLeader                       ID = 634
	SelfPass                         ID = 635
	SelfLastPass                     ID = 636
	SelfActAge                       ID = 637
	SelfJournalPending               ID = 638
	SelfStoreFreeRatio               ID = 639
	SelfPowerBudget                  ID = 640
	SelfFeedDropped                  ID = 641
	SelfOrders                       ID = 650
	SelfCapsActive                   ID = 651
	SelfExporterTicks                ID = 660
	NodeDriverUp                     ID = 661
	NodeDriverCallHung               ID = 662
	SelfEvents                       ID = 668
	SelfEventsDropped                ID = 669
	SelfBusConnected                 ID = 670
	SelfBusReconnects                ID = 671
	SelfBusErrors                    ID = 672
	SelfBusMessagesLost              ID = 673
	SelfBusPending                   ID = 674
	SelfInventoryAge                 ID = 710
	SelfInventoryGeneration          ID = 711
	SelfInventoryNodes               ID = 712
	SelfInventoryRefused             ID = 713
	SelfInventoryFileLoads           ID = 714
	SelfInventoryFileGood            ID = 715
	NodeValuesRefused                ID = 716
	SelfGpusExpected                 ID = 717
	SelfGpusFresh                    ID = 718
	SelfStoreSeries                  ID = 680
	SelfStoreSamplesRefused          ID = 681
	SelfStoreUp                      ID = 682
	SelfStoreSample                  ID = 683
	SelfCollectorLeader              ID = 700
	SelfRemoteAcked                  ID = 684
	SelfRemoteSamplesSent            ID = 685
	SelfRemoteSamplesRefused         ID = 686
	SelfRemoteRetries                ID = 687
	SelfRemoteLost                   ID = 688
	SelfRemoteLate                   ID = 689
	SelfCollectorTakeovers           ID = 701
	SelfStreams                      ID = 720
	SelfStreamsEnded                 ID = 721
	NodeAttributionAge               ID = 691
	NodeAttributionUnmatched         ID = 692
	SelfSpoolBytes                   ID = 693
	SelfSpoolFrames                  ID = 694
	SelfSamplesRefused               ID = 690
)

// Value returns a value in base units, and whether it is there.
func (g *GPU) Value(id ID) (float64, bool) {
	switch id {
	case GPUUtilizationRatio:
		return float64(g.GetUtilizationRatio()) * 0.0001, g.HasUtilizationRatio()
	case GPUMemoryUtilizationRatio:
		return float64(g.GetMemoryUtilizationRatio()) * 0.0001, g.HasMemoryUtilizationRatio()
	case GPUBusySeconds:
		return float64(g.GetBusySeconds()) * 1e-06, g.HasBusySeconds()
	case GPUMemoryUsedBytes:
		return float64(g.GetMemoryUsedBytes()), g.HasMemoryUsedBytes()
	case GPUTemperatureCelsiusCore:
		return float64(g.GetTemperatureCelsiusCore()) * 0.1, g.HasTemperatureCelsiusCore()
	case GPUTemperatureCelsiusMemory:
		return float64(g.GetTemperatureCelsiusMemory()) * 0.1, g.HasTemperatureCelsiusMemory()
	case GPUThermalHeadroomCelsius:
		return float64(g.GetThermalHeadroomCelsius()) * 0.1, g.HasThermalHeadroomCelsius()
	case GPUPowerWatts:
		return float64(g.GetPowerWatts()) * 0.001, g.HasPowerWatts()
	case GPUClockHertzSM:
		return float64(g.GetClockHertzSm()) * 1e+06, g.HasClockHertzSm()
	case GPUClockHertzMemory:
		return float64(g.GetClockHertzMemory()) * 1e+06, g.HasClockHertzMemory()
	case GPUClockHertzGraphics:
		return float64(g.GetClockHertzGraphics()) * 1e+06, g.HasClockHertzGraphics()
	case GPUClockHertzVideo:
		return float64(g.GetClockHertzVideo()) * 1e+06, g.HasClockHertzVideo()
	case GPUThrottleActiveSWPower:
		return bit(g.GetThrottleActiveBits(), 0), g.HasThrottleActiveBits()
	case GPUThrottleActiveSWThermal:
		return bit(g.GetThrottleActiveBits(), 1), g.HasThrottleActiveBits()
	case GPUThrottleActiveHWThermal:
		return bit(g.GetThrottleActiveBits(), 2), g.HasThrottleActiveBits()
	case GPUThrottleActiveHWSlowdown:
		return bit(g.GetThrottleActiveBits(), 3), g.HasThrottleActiveBits()
	case GPUThrottleActivePowerBrake:
		return bit(g.GetThrottleActiveBits(), 4), g.HasThrottleActiveBits()
	case GPUThrottleActiveSyncBoost:
		return bit(g.GetThrottleActiveBits(), 5), g.HasThrottleActiveBits()
	case GPUThrottleActiveIdle:
		return bit(g.GetThrottleActiveBits(), 6), g.HasThrottleActiveBits()
	case GPUThrottleActiveOther:
		return bit(g.GetThrottleActiveBits(), 7), g.HasThrottleActiveBits()
	case GPUEnergyJoules:
		return float64(g.GetEnergyJoules()) * 0.001, g.HasEnergyJoules()
	case GPUNVLinkTotalBytesTx:
		return float64(g.GetNvlinkTotalBytesTx()), g.HasNvlinkTotalBytesTx()
	case GPUNVLinkTotalBytesRx:
		return float64(g.GetNvlinkTotalBytesRx()), g.HasNvlinkTotalBytesRx()
	case GPUSMActiveRatio:
		return float64(g.GetSmActiveRatio()) * 0.0001, g.HasSmActiveRatio()
	case GPUTensorActiveRatio:
		return float64(g.GetTensorActiveRatio()) * 0.0001, g.HasTensorActiveRatio()
	case GPUDRAMActiveRatio:
		return float64(g.GetDramActiveRatio()) * 0.0001, g.HasDramActiveRatio()
	case GPUUp:
		return float64(g.GetUp()), g.HasUp()
	case GPUThrottleSecondsSWPower:
		return float64(g.GetThrottleSecondsSwPower()) * 1e-06, g.HasThrottleSecondsSwPower()
	case GPUThrottleSecondsSWThermal:
		return float64(g.GetThrottleSecondsSwThermal()) * 1e-06, g.HasThrottleSecondsSwThermal()
	case GPUThrottleSecondsHWThermal:
		return float64(g.GetThrottleSecondsHwThermal()) * 1e-06, g.HasThrottleSecondsHwThermal()
	case GPUThrottleSecondsHWSlowdown:
		return float64(g.GetThrottleSecondsHwSlowdown()) * 1e-06, g.HasThrottleSecondsHwSlowdown()
	case GPUThrottleSecondsPowerBrake:
		return float64(g.GetThrottleSecondsPowerBrake()) * 1e-06, g.HasThrottleSecondsPowerBrake()
	case GPUThrottleSecondsSyncBoost:
		return float64(g.GetThrottleSecondsSyncBoost()) * 1e-06, g.HasThrottleSecondsSyncBoost()
	case GPUThrottleSecondsIdle:
		return float64(g.GetThrottleSecondsIdle()) * 1e-06, g.HasThrottleSecondsIdle()
	case GPUThrottleSecondsOther:
		return float64(g.GetThrottleSecondsOther()) * 1e-06, g.HasThrottleSecondsOther()
	case GPUMemoryTotalBytes:
		return float64(g.GetMemoryTotalBytes()), g.HasMemoryTotalBytes()
	case GPUMemoryReservedBytes:
		return float64(g.GetMemoryReservedBytes()), g.HasMemoryReservedBytes()
	case GPUPowerLimitWatts:
		return float64(g.GetPowerLimitWatts()) * 0.001, g.HasPowerLimitWatts()
	case GPUPowerLimitMinWatts:
		return float64(g.GetPowerLimitMinWatts()) * 0.001, g.HasPowerLimitMinWatts()
	case GPUPowerLimitDefaultWatts:
		return float64(g.GetPowerLimitDefaultWatts()) * 0.001, g.HasPowerLimitDefaultWatts()
	case GPUPowerLimitMaxWatts:
		return float64(g.GetPowerLimitMaxWatts()) * 0.001, g.HasPowerLimitMaxWatts()
	case GPUSlowdownThresholdCelsius:
		return float64(g.GetSlowdownThresholdCelsius()) * 0.1, g.HasSlowdownThresholdCelsius()
	case GPUSlowdownOffsetCelsius:
		return float64(g.GetSlowdownOffsetCelsius()) * 0.1, g.HasSlowdownOffsetCelsius()
	case GPUFabricState:
		return float64(g.GetFabricState()), g.HasFabricState()
	case GPURecoveryAction:
		return float64(g.GetRecoveryAction()), g.HasRecoveryAction()
	case GPUNVLinkLinksExpected:
		return float64(g.GetNvlinkLinksExpected()), g.HasNvlinkLinksExpected()
	case GPUPCIeReplays:
		return float64(g.GetPcieReplays()), g.HasPcieReplays()
	case GPUPCIeLinkWidth:
		return float64(g.GetPcieLinkWidth()), g.HasPcieLinkWidth()
	case GPUPCIeLinkWidthMax:
		return float64(g.GetPcieLinkWidthMax()), g.HasPcieLinkWidthMax()
	case GPUPCIeLinkGeneration:
		return float64(g.GetPcieLinkGeneration()), g.HasPcieLinkGeneration()
	case GPUPCIeLinkGenerationMax:
		return float64(g.GetPcieLinkGenerationMax()), g.HasPcieLinkGenerationMax()
	case GPUPCIeBytesTx:
		return float64(g.GetPcieBytesTx()), g.HasPcieBytesTx()
	case GPUPCIeBytesRx:
		return float64(g.GetPcieBytesRx()), g.HasPcieBytesRx()
	case GPUECCErrorsCorrectedVolatile:
		return float64(g.GetEccErrorsCorrectedVolatile()), g.HasEccErrorsCorrectedVolatile()
	case GPUECCErrorsCorrectedAggregate:
		return float64(g.GetEccErrorsCorrectedAggregate()), g.HasEccErrorsCorrectedAggregate()
	case GPUECCErrorsUncorrectedVolatile:
		return float64(g.GetEccErrorsUncorrectedVolatile()), g.HasEccErrorsUncorrectedVolatile()
	case GPUECCErrorsUncorrectedAggregate:
		return float64(g.GetEccErrorsUncorrectedAggregate()), g.HasEccErrorsUncorrectedAggregate()
	case GPURowRemapPending:
		return float64(g.GetRowRemapPending()), g.HasRowRemapPending()
	case GPURowRemapFailed:
		return float64(g.GetRowRemapFailed()), g.HasRowRemapFailed()
	case GPURowRemapCorrectable:
		return float64(g.GetRowRemapCorrectable()), g.HasRowRemapCorrectable()
	case GPURowRemapUncorrectable:
		return float64(g.GetRowRemapUncorrectable()), g.HasRowRemapUncorrectable()
	}
	return 0, false
}

// SetValue stores a value given in base units. It reports false, and stores
// nothing, if the id has no field here or the value does not fit it.
func (g *GPU) SetValue(id ID, v float64) bool {
	switch id {
	case GPUUtilizationRatio:
		w, ok := wire[uint32](v, 0.0001)
		if ok {
			g.SetUtilizationRatio(w)
		}
		return ok
	case GPUMemoryUtilizationRatio:
		w, ok := wire[uint32](v, 0.0001)
		if ok {
			g.SetMemoryUtilizationRatio(w)
		}
		return ok
	case GPUBusySeconds:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetBusySeconds(w)
		}
		return ok
	case GPUMemoryUsedBytes:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetMemoryUsedBytes(w)
		}
		return ok
	case GPUTemperatureCelsiusCore:
		w, ok := wire[int32](v, 0.1)
		if ok {
			g.SetTemperatureCelsiusCore(w)
		}
		return ok
	case GPUTemperatureCelsiusMemory:
		w, ok := wire[int32](v, 0.1)
		if ok {
			g.SetTemperatureCelsiusMemory(w)
		}
		return ok
	case GPUThermalHeadroomCelsius:
		w, ok := wire[int32](v, 0.1)
		if ok {
			g.SetThermalHeadroomCelsius(w)
		}
		return ok
	case GPUPowerWatts:
		w, ok := wire[uint32](v, 0.001)
		if ok {
			g.SetPowerWatts(w)
		}
		return ok
	case GPUClockHertzSM:
		w, ok := wire[uint32](v, 1e+06)
		if ok {
			g.SetClockHertzSm(w)
		}
		return ok
	case GPUClockHertzMemory:
		w, ok := wire[uint32](v, 1e+06)
		if ok {
			g.SetClockHertzMemory(w)
		}
		return ok
	case GPUClockHertzGraphics:
		w, ok := wire[uint32](v, 1e+06)
		if ok {
			g.SetClockHertzGraphics(w)
		}
		return ok
	case GPUClockHertzVideo:
		w, ok := wire[uint32](v, 1e+06)
		if ok {
			g.SetClockHertzVideo(w)
		}
		return ok
	case GPUThrottleActiveSWPower:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 0, v))
		return true
	case GPUThrottleActiveSWThermal:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 1, v))
		return true
	case GPUThrottleActiveHWThermal:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 2, v))
		return true
	case GPUThrottleActiveHWSlowdown:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 3, v))
		return true
	case GPUThrottleActivePowerBrake:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 4, v))
		return true
	case GPUThrottleActiveSyncBoost:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 5, v))
		return true
	case GPUThrottleActiveIdle:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 6, v))
		return true
	case GPUThrottleActiveOther:
		g.SetThrottleActiveBits(withBit(g.GetThrottleActiveBits(), 7, v))
		return true
	case GPUEnergyJoules:
		w, ok := wire[uint64](v, 0.001)
		if ok {
			g.SetEnergyJoules(w)
		}
		return ok
	case GPUNVLinkTotalBytesTx:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetNvlinkTotalBytesTx(w)
		}
		return ok
	case GPUNVLinkTotalBytesRx:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetNvlinkTotalBytesRx(w)
		}
		return ok
	case GPUSMActiveRatio:
		w, ok := wire[uint32](v, 0.0001)
		if ok {
			g.SetSmActiveRatio(w)
		}
		return ok
	case GPUTensorActiveRatio:
		w, ok := wire[uint32](v, 0.0001)
		if ok {
			g.SetTensorActiveRatio(w)
		}
		return ok
	case GPUDRAMActiveRatio:
		w, ok := wire[uint32](v, 0.0001)
		if ok {
			g.SetDramActiveRatio(w)
		}
		return ok
	case GPUUp:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetUp(w)
		}
		return ok
	case GPUThrottleSecondsSWPower:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsSwPower(w)
		}
		return ok
	case GPUThrottleSecondsSWThermal:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsSwThermal(w)
		}
		return ok
	case GPUThrottleSecondsHWThermal:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsHwThermal(w)
		}
		return ok
	case GPUThrottleSecondsHWSlowdown:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsHwSlowdown(w)
		}
		return ok
	case GPUThrottleSecondsPowerBrake:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsPowerBrake(w)
		}
		return ok
	case GPUThrottleSecondsSyncBoost:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsSyncBoost(w)
		}
		return ok
	case GPUThrottleSecondsIdle:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsIdle(w)
		}
		return ok
	case GPUThrottleSecondsOther:
		w, ok := wire[uint64](v, 1e-06)
		if ok {
			g.SetThrottleSecondsOther(w)
		}
		return ok
	case GPUMemoryTotalBytes:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetMemoryTotalBytes(w)
		}
		return ok
	case GPUMemoryReservedBytes:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetMemoryReservedBytes(w)
		}
		return ok
	case GPUPowerLimitWatts:
		w, ok := wire[uint32](v, 0.001)
		if ok {
			g.SetPowerLimitWatts(w)
		}
		return ok
	case GPUPowerLimitMinWatts:
		w, ok := wire[uint32](v, 0.001)
		if ok {
			g.SetPowerLimitMinWatts(w)
		}
		return ok
	case GPUPowerLimitDefaultWatts:
		w, ok := wire[uint32](v, 0.001)
		if ok {
			g.SetPowerLimitDefaultWatts(w)
		}
		return ok
	case GPUPowerLimitMaxWatts:
		w, ok := wire[uint32](v, 0.001)
		if ok {
			g.SetPowerLimitMaxWatts(w)
		}
		return ok
	case GPUSlowdownThresholdCelsius:
		w, ok := wire[int32](v, 0.1)
		if ok {
			g.SetSlowdownThresholdCelsius(w)
		}
		return ok
	case GPUSlowdownOffsetCelsius:
		w, ok := wire[int32](v, 0.1)
		if ok {
			g.SetSlowdownOffsetCelsius(w)
		}
		return ok
	case GPUFabricState:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetFabricState(w)
		}
		return ok
	case GPURecoveryAction:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetRecoveryAction(w)
		}
		return ok
	case GPUNVLinkLinksExpected:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetNvlinkLinksExpected(w)
		}
		return ok
	case GPUPCIeReplays:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetPcieReplays(w)
		}
		return ok
	case GPUPCIeLinkWidth:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetPcieLinkWidth(w)
		}
		return ok
	case GPUPCIeLinkWidthMax:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetPcieLinkWidthMax(w)
		}
		return ok
	case GPUPCIeLinkGeneration:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetPcieLinkGeneration(w)
		}
		return ok
	case GPUPCIeLinkGenerationMax:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetPcieLinkGenerationMax(w)
		}
		return ok
	case GPUPCIeBytesTx:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetPcieBytesTx(w)
		}
		return ok
	case GPUPCIeBytesRx:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetPcieBytesRx(w)
		}
		return ok
	case GPUECCErrorsCorrectedVolatile:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetEccErrorsCorrectedVolatile(w)
		}
		return ok
	case GPUECCErrorsCorrectedAggregate:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetEccErrorsCorrectedAggregate(w)
		}
		return ok
	case GPUECCErrorsUncorrectedVolatile:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetEccErrorsUncorrectedVolatile(w)
		}
		return ok
	case GPUECCErrorsUncorrectedAggregate:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetEccErrorsUncorrectedAggregate(w)
		}
		return ok
	case GPURowRemapPending:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetRowRemapPending(w)
		}
		return ok
	case GPURowRemapFailed:
		w, ok := wire[uint32](v, 1)
		if ok {
			g.SetRowRemapFailed(w)
		}
		return ok
	case GPURowRemapCorrectable:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetRowRemapCorrectable(w)
		}
		return ok
	case GPURowRemapUncorrectable:
		w, ok := wire[uint64](v, 1)
		if ok {
			g.SetRowRemapUncorrectable(w)
		}
		return ok
	}
	return false
}

// ClearValue removes a value. The series of a bits row go together.
func (g *GPU) ClearValue(id ID) {
	switch id {
	case GPUUtilizationRatio:
		g.ClearUtilizationRatio()
	case GPUMemoryUtilizationRatio:
		g.ClearMemoryUtilizationRatio()
	case GPUBusySeconds:
		g.ClearBusySeconds()
	case GPUMemoryUsedBytes:
		g.ClearMemoryUsedBytes()
	case GPUTemperatureCelsiusCore:
		g.ClearTemperatureCelsiusCore()
	case GPUTemperatureCelsiusMemory:
		g.ClearTemperatureCelsiusMemory()
	case GPUThermalHeadroomCelsius:
		g.ClearThermalHeadroomCelsius()
	case GPUPowerWatts:
		g.ClearPowerWatts()
	case GPUClockHertzSM:
		g.ClearClockHertzSm()
	case GPUClockHertzMemory:
		g.ClearClockHertzMemory()
	case GPUClockHertzGraphics:
		g.ClearClockHertzGraphics()
	case GPUClockHertzVideo:
		g.ClearClockHertzVideo()
	case GPUThrottleActiveSWPower:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveSWThermal:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveHWThermal:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveHWSlowdown:
		g.ClearThrottleActiveBits()
	case GPUThrottleActivePowerBrake:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveSyncBoost:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveIdle:
		g.ClearThrottleActiveBits()
	case GPUThrottleActiveOther:
		g.ClearThrottleActiveBits()
	case GPUEnergyJoules:
		g.ClearEnergyJoules()
	case GPUNVLinkTotalBytesTx:
		g.ClearNvlinkTotalBytesTx()
	case GPUNVLinkTotalBytesRx:
		g.ClearNvlinkTotalBytesRx()
	case GPUSMActiveRatio:
		g.ClearSmActiveRatio()
	case GPUTensorActiveRatio:
		g.ClearTensorActiveRatio()
	case GPUDRAMActiveRatio:
		g.ClearDramActiveRatio()
	case GPUUp:
		g.ClearUp()
	case GPUThrottleSecondsSWPower:
		g.ClearThrottleSecondsSwPower()
	case GPUThrottleSecondsSWThermal:
		g.ClearThrottleSecondsSwThermal()
	case GPUThrottleSecondsHWThermal:
		g.ClearThrottleSecondsHwThermal()
	case GPUThrottleSecondsHWSlowdown:
		g.ClearThrottleSecondsHwSlowdown()
	case GPUThrottleSecondsPowerBrake:
		g.ClearThrottleSecondsPowerBrake()
	case GPUThrottleSecondsSyncBoost:
		g.ClearThrottleSecondsSyncBoost()
	case GPUThrottleSecondsIdle:
		g.ClearThrottleSecondsIdle()
	case GPUThrottleSecondsOther:
		g.ClearThrottleSecondsOther()
	case GPUMemoryTotalBytes:
		g.ClearMemoryTotalBytes()
	case GPUMemoryReservedBytes:
		g.ClearMemoryReservedBytes()
	case GPUPowerLimitWatts:
		g.ClearPowerLimitWatts()
	case GPUPowerLimitMinWatts:
		g.ClearPowerLimitMinWatts()
	case GPUPowerLimitDefaultWatts:
		g.ClearPowerLimitDefaultWatts()
	case GPUPowerLimitMaxWatts:
		g.ClearPowerLimitMaxWatts()
	case GPUSlowdownThresholdCelsius:
		g.ClearSlowdownThresholdCelsius()
	case GPUSlowdownOffsetCelsius:
		g.ClearSlowdownOffsetCelsius()
	case GPUFabricState:
		g.ClearFabricState()
	case GPURecoveryAction:
		g.ClearRecoveryAction()
	case GPUNVLinkLinksExpected:
		g.ClearNvlinkLinksExpected()
	case GPUPCIeReplays:
		g.ClearPcieReplays()
	case GPUPCIeLinkWidth:
		g.ClearPcieLinkWidth()
	case GPUPCIeLinkWidthMax:
		g.ClearPcieLinkWidthMax()
	case GPUPCIeLinkGeneration:
		g.ClearPcieLinkGeneration()
	case GPUPCIeLinkGenerationMax:
		g.ClearPcieLinkGenerationMax()
	case GPUPCIeBytesTx:
		g.ClearPcieBytesTx()
	case GPUPCIeBytesRx:
		g.ClearPcieBytesRx()
	case GPUECCErrorsCorrectedVolatile:
		g.ClearEccErrorsCorrectedVolatile()
	case GPUECCErrorsCorrectedAggregate:
		g.ClearEccErrorsCorrectedAggregate()
	case GPUECCErrorsUncorrectedVolatile:
		g.ClearEccErrorsUncorrectedVolatile()
	case GPUECCErrorsUncorrectedAggregate:
		g.ClearEccErrorsUncorrectedAggregate()
	case GPURowRemapPending:
		g.ClearRowRemapPending()
	case GPURowRemapFailed:
		g.ClearRowRemapFailed()
	case GPURowRemapCorrectable:
		g.ClearRowRemapCorrectable()
	case GPURowRemapUncorrectable:
		g.ClearRowRemapUncorrectable()
	}
}

// LinkValue returns the value of one link, and whether it is there.
func (g *GPU) LinkValue(id ID, link int) (float64, bool) {
	switch id {
	case LinkNVLinkBytesTx:
		return column(g, g.GetNvlinkBytesTx(), link, 1)
	case LinkNVLinkBytesRx:
		return column(g, g.GetNvlinkBytesRx(), link, 1)
	case LinkNVLinkErrorsCRCFlit:
		return column(g, g.GetNvlinkErrorsCrcFlit(), link, 1)
	case LinkNVLinkErrorsCRCData:
		return column(g, g.GetNvlinkErrorsCrcData(), link, 1)
	case LinkNVLinkErrorsReplay:
		return column(g, g.GetNvlinkErrorsReplay(), link, 1)
	case LinkNVLinkErrorsRecovery:
		return column(g, g.GetNvlinkErrorsRecovery(), link, 1)
	case LinkNVLinkUp:
		return linkFlag(g, g.GetNvlinkUp(), link)
	}
	return 0, false
}

// SetLinkValue stores the value of one link, links in ascending order.
func (g *GPU) SetLinkValue(id ID, link int, v float64) bool {
	switch id {
	case LinkNVLinkBytesTx:
		c, ok := withColumn(g, g.GetNvlinkBytesTx(), link, v, 1)
		if ok {
			g.SetNvlinkBytesTx(c)
		}
		return ok
	case LinkNVLinkBytesRx:
		c, ok := withColumn(g, g.GetNvlinkBytesRx(), link, v, 1)
		if ok {
			g.SetNvlinkBytesRx(c)
		}
		return ok
	case LinkNVLinkErrorsCRCFlit:
		c, ok := withColumn(g, g.GetNvlinkErrorsCrcFlit(), link, v, 1)
		if ok {
			g.SetNvlinkErrorsCrcFlit(c)
		}
		return ok
	case LinkNVLinkErrorsCRCData:
		c, ok := withColumn(g, g.GetNvlinkErrorsCrcData(), link, v, 1)
		if ok {
			g.SetNvlinkErrorsCrcData(c)
		}
		return ok
	case LinkNVLinkErrorsReplay:
		c, ok := withColumn(g, g.GetNvlinkErrorsReplay(), link, v, 1)
		if ok {
			g.SetNvlinkErrorsReplay(c)
		}
		return ok
	case LinkNVLinkErrorsRecovery:
		c, ok := withColumn(g, g.GetNvlinkErrorsRecovery(), link, v, 1)
		if ok {
			g.SetNvlinkErrorsRecovery(c)
		}
		return ok
	case LinkNVLinkUp:
		c, ok := withLinkFlag(g, g.GetNvlinkUp(), link, v)
		if ok {
			g.SetNvlinkUp(c)
		}
		return ok
	}
	return false
}
